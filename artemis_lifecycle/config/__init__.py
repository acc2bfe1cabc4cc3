"""lifecycle.yaml as typed models.

Belongs here: what a user may configure, its defaults, and which policy a table has. Does not belong: opening a
connection or starting anything (`embedded/` fills the addresses that are left empty).
"""
