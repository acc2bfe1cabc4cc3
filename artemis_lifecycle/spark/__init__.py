"""The Spark session. Belongs here: its settings, opening it, and what crosses between it and its workers. Does not
belong: any query, or what a catalog's settings are (`catalogs/` says that).
"""
