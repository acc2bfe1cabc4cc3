"""`artemis gate serve`: a proxy before any Iceberg REST catalog that refuses commits without lineage.

`routes` decides which requests change tables, `bodies` reads what they would commit, `rules` judges that by
lifecycle.yaml, `proxy` forwards or refuses, `server` listens. Does not belong here: the requirements (`contracts/`),
and gates inside a catalog or its database (`catalogs/`).
"""
