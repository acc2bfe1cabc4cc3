"""Nessie catalogs: their references, commits and contents, read through the REST API v2. Belongs here: everything that
knows Nessie. Does not belong here: what is live (`live_sets/`), Iceberg's metadata (`metadata/`), writing to Nessie."""
