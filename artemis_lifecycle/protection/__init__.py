"""The only place that decides whether a file may be deleted, and why not. Belongs here: every source that protects
files, the order in which they are read, and the answer. Does not belong here: which files should be deleted
(`expiration/`, `orphans/`), deleting them (`deletion/`), or what a snapshot reaches (`reachability/`).

Read `protection.py` first. Expiration, deletion of orphans and of dropped tables, quarantine and its purge, dry runs
and `explain` all use it. docs/protection.md lists the sources, and what happens if one cannot be read.
"""
