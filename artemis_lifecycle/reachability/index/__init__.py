"""The manifest index behind reachability. Belongs here: reading manifest lists and manifests once, storing their
contents, and answering which files kept and expired snapshots reach. Does not belong here: which snapshots are kept,
plans, deleting.

Each module imports only those before it: `array_file`, `index`, `manifests`, `segments`, `state`, `view`; the queries
`lookups` and `files`; `refresh`.
"""

from artemis_lifecycle.reachability.index.array_file import IndexInMemory
from artemis_lifecycle.reachability.index.index import DEFAULT_SETTINGS, IndexSettings, ManifestIndex
from artemis_lifecycle.reachability.index.view import IndexView

__all__ = ["DEFAULT_SETTINGS", "IndexInMemory", "IndexSettings", "IndexView", "ManifestIndex"]
