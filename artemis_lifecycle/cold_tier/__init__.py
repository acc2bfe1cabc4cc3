"""The cold tier: an expired snapshot's files copied, verified and published as a table that reads by itself. Belongs
here: where a live path goes, the rewriting of files that hold paths, copying in batches that resume, the cold metadata
file, reading from either tier. Does not belong: which snapshots expire, and deleting anything live.
"""
