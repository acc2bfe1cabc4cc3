"""An open configuration, and what all steps share: catalogs, stores, Postgres and Spark, each opened at its first use;
a step's lease, record and pause; clocks. Does not belong here: what a step does (`walk/`).
"""
