"""Files that snapshots reach and a whole listing does not have. Belongs here: finding them, and stopping a scan.

Such a file was lost, or its name in the metadata is not what was written: Avro has no checksum, and a flipped bit that
still decodes names another path. Then the file itself is in the listing, reached by nothing: it looks like an orphan,
and is alive. A listing that lies, or leaves out, shows itself in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.errors import MissingFile
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.lookups import outside
from artemis_lifecycle.storage.location import LocationRules, is_under, normalize
from artemis_lifecycle.storage.location_hash import distinct
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

LOOKED_UP = 10_000
"""So many files that are not listed are looked up one by one; of more, these."""

_HEADS = 16
_SHOWN = 5


def require_nothing_missing(
    stores: Stores,
    view: IndexView,
    listing: Listing,
    hashes: Sequence[NDArray[np.uint64]],
    rules: LocationRules,
    table: str,
) -> None:
    """Look up each file that a snapshot from before `listing` reaches below its locations and that it does not have
    (by `hashes`, its location hashes). Raises MissingFile when the store does not have one either."""
    began = listing.started_at.timestamp() * 1000
    before = [snapshot.snapshot_id for snapshot in view.metadata.snapshots if snapshot.timestamp_ms < began]
    listed = distinct(np.concatenate([np.empty(0, np.uint64), *hashes]))
    roots = [normalize(location, rules) for location in listing.locations]
    unlisted = [
        path
        for path in outside(view, before, listed, at_most=LOOKED_UP)
        if any(is_under(normalize(path, rules), root, rules) for root in roots)
    ]
    # Written after the listing, by a writer whose clock is behind, it is there.
    found = threaded(stores.head, unlisted, stores.readers(listing.locations[0], _HEADS))
    missing = [path for path, file in zip(unlisted, found, strict=True) if file is None]
    if missing:
        raise MissingFile(
            f"{len(missing):,} files that snapshots reach are not in the store, e.g. {', '.join(missing[:_SHOWN])}: "
            "they were lost, or damaged metadata names them wrongly, and the right ones would look like orphans",
            table=table,
            path=missing[0],
            untouched="all files",
            hint="see which snapshots reach them (artemis explain TABLE PATH) and fix or expire those; "
            "orphans.missing_files: ignore lets scans go on without",
        )
