"""The files that kept snapshots reach. Belongs here: walking manifest lists and manifests on Spark executors, and the
result: which files stay, and which only expired snapshots reach. Does not belong here: which snapshots are kept
(`retention/`), plans (`expiration/`), deleting (`deletion/`)."""
