"""The live and the cold catalog. Belongs here: one configuration as settings of pyiceberg and of Spark; reading the
catalogs' own rows; the compare-and-swap commit; publishing to the cold catalog.

Does not belong: what a metadata file says (`metadata/`), or what should be committed and whether it may (`expiration/`,
`cold_tier/`).
"""
