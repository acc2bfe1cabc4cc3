"""Keeping a table fit to be read. Belongs here: health figures, compaction of data files and of manifests, when each is
worth it, and costs. Does not belong here: expiring, deleting, or anything that loses a row.
"""
