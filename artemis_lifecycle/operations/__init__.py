"""Small mutable state in Postgres. Belongs here: plans' status, the deletion journal, handoff batches, leases and
locks, holds, heartbeats, step records, scans, who tagged what; their schema and its migrations; Postgres' clock.

Does not belong: what a plan or scan contains (sealed files under `operations.root`), the catalogs' own rows
(`catalogs/`), or any decision about a table.
"""
