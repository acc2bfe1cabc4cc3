"""The manifest index behind reachability. Belongs here: reading manifest lists and manifests once, keeping what they
say, and settling which files kept and expired snapshots reach. Does not belong: which snapshots are kept, plans,
deleting.
"""

from artemis_lifecycle.reachability.index.index import DEFAULT_SETTINGS, IndexSettings, IndexView, ManifestIndex

__all__ = ["DEFAULT_SETTINGS", "IndexSettings", "IndexView", "ManifestIndex"]
