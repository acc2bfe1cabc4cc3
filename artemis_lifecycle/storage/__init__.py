"""One interface to object stores. Belongs here: what a location is (`location`); listing, reading, writing, verified
copying and bulk deletion on local disks and in object stores (`stores`); frames that are stored completely or not at
all (`frames`). Does not belong here: which files to list, copy or delete, and any knowledge of Iceberg tables."""
