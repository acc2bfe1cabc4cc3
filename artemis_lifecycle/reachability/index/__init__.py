"""The manifest index behind reachability. Belongs here: reading manifest lists and manifests once, storing their
contents, and answering which files kept and expired snapshots reach. Does not belong here: which snapshots are kept,
plans, deleting.

Each module imports only those before it: `array_file`, `cache`; `index`; `manifests`, `segments`; `state`;
`rows`; `view`; the queries `lookups`, `files`, `held`, `folders`, `presence`, `on_spark`; `compaction`; `refresh`.
"""

from artemis_lifecycle.reachability.index.index import DEFAULT_SETTINGS, IndexSettings, ManifestIndex
from artemis_lifecycle.reachability.index.view import IndexView

__all__ = ["DEFAULT_SETTINGS", "IndexSettings", "IndexView", "ManifestIndex"]
