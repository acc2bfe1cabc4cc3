"""The four levels of an Iceberg table's metadata: metadata file, manifest list, manifest, manifest entry.

Belongs here: reading them exactly; detecting a missing, truncated or shorter file by the level above; and the types of
what was read. Does not belong here: deciding what stays (`retention/`), or sets over many manifests (`reachability/`).
"""
