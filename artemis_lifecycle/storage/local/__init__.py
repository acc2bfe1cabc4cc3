"""The local disk: every folder that this machine mounts.

Belongs here: listing, reading, writing and deleting files through the operating system. Does not belong here: which
store a path belongs to (`stores`).
"""
