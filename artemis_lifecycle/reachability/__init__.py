"""The files that kept snapshots reach. Belongs here: walking manifest lists and manifests on Spark executors, and what
follows from it: which files stay, which only expired snapshots reach. Does not belong: which snapshots are kept
(`retention/`), plans (`expiration/`), deleting (`deletion/`).
"""
