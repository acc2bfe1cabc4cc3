"""What a table needs next. Belongs here: pure functions over what a table has behind it. Does not belong: Dagster,
reading Postgres or a catalog.
"""
