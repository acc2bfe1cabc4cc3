"""The live and the cold catalog. Belongs here: one configuration as settings of pyiceberg and of Spark; reading the
catalogs' own rows; the swap of a pointer, and the commit through Iceberg's core; publishing to the cold catalog.

Does not belong here: the content of metadata files (`metadata/`), or what should and may be committed (`expiration/`,
`cold_tier/`).
"""
