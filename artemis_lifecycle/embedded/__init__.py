"""The embedded stack: what a first run needs and the user has not named. Belongs here: Java's check, Spark's jars, a
Postgres from a wheel, and filling the addresses that lifecycle.yaml leaves out. Does not belong: anything that works
with a table, or that a user's own Postgres, warehouse or Spark would need as well.
"""
