"""Which snapshots and refs of a table stay, and why.

Belongs here: pure rules over a table's history; no Spark, no file, no clock. Does not belong: what the kept snapshots
reach (`reachability/`), or removing the others (`expiration/`).
"""
