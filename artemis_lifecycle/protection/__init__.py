"""The one place that decides whether a file may be deleted, and why not. Belongs here: every source that protects
files, the order in which they are read, and the answer. Does not belong: which files are candidates
(`expiration/`, `orphans/`), deleting them (`deletion/`), or what a snapshot reaches (`reachability/`).

Read `protection.py` first: expiration, orphan and dropped-table deletions, quarantine and its purge, dry runs and
`explain` all ask it. docs/protection.md lists the sources, and what happens when one cannot be read.
"""
