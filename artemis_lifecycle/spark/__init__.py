"""The Spark session: its settings, opening it, running functions on it, and its errors. No queries, and no settings of
catalogs (`catalogs/` has those).
"""
