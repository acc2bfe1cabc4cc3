"""Garbage collection over a whole catalog: which contents the references keep alive (mark), and which files none of
them reaches (sweep). Belongs here: policies, the walk of commit logs, live versions as metadata, the sweep, comparing
sets. Does not belong here: a catalog's own API (`nessie/`), rows (`operations/live_sets.py`), whether a file may be
deleted (`protection/`), deleting (`deletion/`). Read `mark` first, then `sweep`."""
