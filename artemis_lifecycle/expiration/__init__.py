"""Expiration plans and the one metadata commit. Belongs here: sealing a plan, finding it again, the guards that refuse
a stale one, the commit that removes snapshots. Does not belong: which snapshots are kept (`retention/`), what they
reach (`reachability/`), copying (`cold_tier/`) and deleting (`deletion/`).
"""
