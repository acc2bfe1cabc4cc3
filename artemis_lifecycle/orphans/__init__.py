"""Orphan files, which no table references. Belongs here: listing a table's locations, distinguishing orphans from files
that only look like them, sealing a scan, and passing it to deletion. Does not belong here: what a snapshot reaches
(`reachability/`), deleting (`deletion/`), heartbeats themselves (`operations/`). Read `scan` first."""
