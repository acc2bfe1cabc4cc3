"""Checks of a table's newest listing, and of its share of orphans over the last scans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.config.policies import Checks
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.expiration.verdicts import Verdict
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.trend import ScanPoint
from artemis_lifecycle.storage.frames import map_parts
from artemis_lifecycle.storage.location import LocationRules, is_under, normalize
from artemis_lifecycle.storage.stores import Stores

FRESH, INTACT, SHARE = "listing_is_fresh", "listing_is_intact", "orphan_share_below_threshold"

_NONE = "The table has no listing."


def judge_listing_age(
    listing: Listing | None, folders: Sequence[str], rules: LocationRules, now: datetime, checks: Checks
) -> Verdict:
    """Check that the newest listing is younger than `listing_age`, and covers all `folders` of the table."""
    if listing is None:
        return Verdict(FRESH, False, _NONE, warns=True)
    listed = {normalize(each, rules) for each in listing.locations}
    missing = tuple(
        each
        for each in folders
        if normalize(each, rules) not in listed and not any(is_under(each, other, rules) for other in listing.locations)
    )
    age = now - listing.started_at
    text = f"The newest listing began {age.total_seconds() / 3600:.1f} hours ago"
    return Verdict(
        FRESH,
        not missing and age <= checks.listing_age,
        f"{text}, and does not cover all of the table's locations."
        if missing
        else f"{text}; {checks.listing_age.total_seconds() / 3600:.0f} hours are allowed.",
        missing,
        {"listing_id": listing.listing_id, "age_seconds": round(age.total_seconds())},
        warns=True,
    )


def judge_listing(listing: Listing | None, stores: Stores) -> Verdict:
    """Check that the sealed rows of the newest listing match their checksums, and their recorded number and bytes.
    Reads all of them."""
    if listing is None:
        return Verdict(INTACT, False, _NONE, warns=True)
    try:
        parts = list(map_parts(listing.files_location, stores, _totals, ["size_in_bytes"]))
    except StorageError as error:
        return Verdict(INTACT, False, f"The rows of {listing.listing_id} cannot be read.", (str(error),))
    files, size = sum(each for each, _ in parts), sum(each for _, each in parts)
    recorded = (listing.files, listing.bytes)
    return Verdict(
        INTACT,
        (files, size) == recorded,
        f"The listing has {files:,} files and {size:,} bytes; recorded are {recorded[0]:,} and {recorded[1]:,}.",
        figures={"listing_id": listing.listing_id, "files": files, "bytes": size},
    )


def _totals(batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    files = size = 0
    for batch in batches:
        files, size = files + batch.num_rows, size + (pc.sum(batch.column("size_in_bytes")).as_py() or 0)
    return files, size


def judge_orphan_share(points: Sequence[ScanPoint], checks: Checks) -> Verdict:
    """Check the share of orphans of the last of `points` (oldest first) against `error`, and that of the last scans
    against `warn`. A single scan above `warn` may find what was left behind before the first one."""
    if not points:
        return Verdict(SHARE, False, "The table has no scan.", warns=True)
    limits, last = checks.orphan_share, points[-1]
    recent = points[-limits.scans :]
    above = len(recent) == limits.scans and all(each.orphan_share > limits.warn for each in recent)
    red = last.orphan_share > limits.error
    text = f"{last.orphans:,} of {last.listed:,} listed files are orphans ({last.orphan_share:.2%})"
    return Verdict(
        SHARE,
        not red and not above,
        f"{text}; above {limits.error:.1%}, a wrong location or scheme is likely. Check before you delete."
        if red
        else f"{text}; each of the last {limits.scans} scans found more than {limits.warn:.2%}."
        if above
        else f"{text}; {limits.error:.1%} are allowed in a scan, {limits.warn:.2%} in {limits.scans} in a row.",
        figures={"orphan_share": round(last.orphan_share, 6), "orphans": last.orphans, "files": last.listed},
        warns=not red,
    )
