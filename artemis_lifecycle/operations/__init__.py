"""Small mutable state in Postgres. Belongs here: plans' status, the deletion journal, handoff batches, leases and
locks, holds, heartbeats, step records, scans, tag records; their schema and its migrations; the Postgres clock.

Does not belong here: the content of a plan or scan (sealed files under `operations.root`), the catalogs' own rows
(`catalogs/`), or any decision about a table.
"""
