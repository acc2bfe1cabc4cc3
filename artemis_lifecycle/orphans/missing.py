"""Files that snapshots reach and that are missing from a complete listing. Belongs here: finding them, and stopping a
scan.

Such a file was lost, or its path in the metadata is damaged: Avro has no checksum, and a flipped bit may still decode
to another path. Then the real file is in the listing, unreached: it looks like an orphan, but is live. An incorrect or
incomplete listing shows in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from artemis_lifecycle.errors import MissingFile
from artemis_lifecycle.orphans.candidates import ListedPart, files_themselves
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.reachability.files import ReachedFiles
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.storage.location import LocationRules, is_under, normalize
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

LOOKED_UP = 10_000
"""Maximum number of unlisted files that are looked up individually."""

_HEADS = 16
_SHOWN = 5


def require_nothing_missing(
    stores: Stores,
    files: ReachedFiles,
    listing: Listing,
    parts: Sequence[ListedPart],
    rules: LocationRules,
    table: str,
) -> None:
    """Look up each file that a snapshot older than `listing` reaches below its locations and that the listing lacks (by
    `parts`; a checksum file does not stand for its file). Raises MissingFile if the store does not have one either."""
    began = milliseconds(listing.started_at)
    listed = files_themselves(parts)
    roots = [normalize(location, rules) for location in listing.locations]
    unlisted = [
        path
        for path in files.outside(began, listed, at_most=LOOKED_UP)
        if any(is_under(normalize(path, rules), root, rules) for root in roots)
    ]
    # A file exists if it was written after the listing, by a writer whose clock is behind.
    found = threaded(stores.head, unlisted, stores.readers(listing.locations[0], _HEADS))
    missing = [path for path, file in zip(unlisted, found, strict=True) if file is None]
    if missing:
        raise MissingFile(
            f"{len(missing):,} files that snapshots reach are not in the store, e.g. {', '.join(missing[:_SHOWN])}: "
            "they were lost, or damaged metadata names them wrongly, and the right ones would look like orphans",
            table=table,
            path=missing[0],
            untouched="all files",
            hint="check which snapshots reach them (artemis explain TABLE PATH) and fix or expire those; "
            "orphans.missing_files: ignore lets scans go on without",
        )
