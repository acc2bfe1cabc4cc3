"""Alembic migrations of schema `lifecycle`. Belongs here: revisions. Does not belong here: rules about the data."""

HEAD = "0001"
"""The newest revision, which an up-to-date schema has."""
