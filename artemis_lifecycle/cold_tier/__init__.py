"""The cold tier: expired snapshots are copied, verified and published as a table that is readable without the live
tier. Belongs here: where a live path goes in the cold tier, rewriting files that contain paths, resumable copying in
batches, the cold metadata file, and reading from either tier. Does not belong here: which snapshots expire, and
deleting live files."""
