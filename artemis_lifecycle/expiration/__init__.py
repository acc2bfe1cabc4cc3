"""Expiration plans and their metadata commit. Belongs here: sealing a plan, loading it, the guards that refuse a stale
plan, the commit that removes snapshots. Does not belong here: which snapshots are kept (`retention/`), what they reach
(`reachability/`), copying (`cold_tier/`) and deleting (`deletion/`)."""
