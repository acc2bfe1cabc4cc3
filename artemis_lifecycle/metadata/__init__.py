"""What the four levels of an Iceberg table's metadata say: metadata file, manifest list, manifest, manifest entry.

Belongs here: reading them exactly, noticing when one is missing, cut or shorter than the level above says, and the
types that carry what was read. Does not belong: deciding what stays (`retention/`), or sets over many manifests
(`reachability/`).
"""
