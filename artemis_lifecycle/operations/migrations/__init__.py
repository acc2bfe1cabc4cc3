"""Alembic migrations of schema `lifecycle`. Belongs here: revisions. Does not belong: rules about the data."""
