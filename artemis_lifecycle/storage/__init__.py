"""One interface to object stores. Belongs here: what a location is (`location`), listing, reading, writing, verified
copying and bulk deletion on local disks and S3 (`stores`), and frames stored whole or not at all (`frames`). Does not
belong: which files to list, copy or delete, and anything that knows what an Iceberg table is.
"""
