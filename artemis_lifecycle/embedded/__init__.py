"""The embedded stack of a first run: Java's check, Spark's jars, Postgres from a wheel, and defaults for the addresses
that lifecycle.yaml does not set. Nothing here works with tables.
"""
