"""The live and the cold catalog. Belongs here: one configuration as settings of pyiceberg and of Spark; reading the
catalogs' own rows; the compare-and-swap commit; publishing to the cold catalog.

Does not belong here: the content of metadata files (`metadata/`), or what should and may be committed (`expiration/`,
`cold_tier/`).
"""
