"""The Spark session. Belongs here: its settings, opening it, and errors that cross from its workers. Does not belong: any
query, or what a catalog's settings are (`catalogs/` says that).
"""
