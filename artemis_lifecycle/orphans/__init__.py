"""Orphan files. Belongs here: listing a table's locations, telling orphans from everything that only looks
like one, sealing a scan, handing it to deletion. Does not belong: what a snapshot reaches (`reachability/`), deleting
(`deletion/`), heartbeats themselves (`operations/`). Read `scan` first.
"""
