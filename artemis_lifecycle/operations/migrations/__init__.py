"""Alembic migrations of schema `lifecycle`. Belongs here: revisions. Does not belong here: rules about the data."""
