"""The verdict on each listed file: referenced, protected and why, or orphan. Belongs here: the join of a listing with
what is known, and the order in which protections speak. Does not belong: reading any of it (`scan.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from artemis_lifecycle.deletion.last_look import (
    CURRENT_METADATA,
    IN_FLIGHT,
    NOT_OWNED,
    OTHER_TABLE,
    REACHABLE,
    RECEIPT,
    Grounds,
)
from artemis_lifecycle.deletion.ownership import subject, subject_column
from artemis_lifecycle.errors import PrefixMismatch
from artemis_lifecycle.metadata import kinds
from artemis_lifecycle.orphans.names import kinds_by_name
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.instants import microseconds
from artemis_lifecycle.storage.location import LocationRules, normalise, normalise_column
from artemis_lifecycle.storage.many_files import ByFolder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

OPEN_PLAN = "open_plan"
"""An expiration plan holds the file: it waits for its handoff, its commit, its grace or its deletion."""

OPEN_SCAN = "open_scan"
"""Another scan of the table is being deleted, and names the file."""

TOO_YOUNG = "too_young"
"""Younger than `min_age`, or a metadata file outside the log younger than the retention window."""

UNKNOWN_AGE = "unknown_age"
"""The listing does not tell when the file was last modified."""

PREFIX_MISMATCH = "prefix_mismatch"
"""A reachable file has the same path under another scheme or authority."""

ORPHAN = "orphan"

JUDGED = "path string, size_in_bytes bigint, last_modified timestamp, kind string, verdict string, twin string"

_PREFIX = re.compile(r"\A[A-Za-z][A-Za-z0-9+.\-]*://[^/]*")
"""Scheme and authority of a location, in the syntax that Python and Spark share."""

_VERDICTS = (ORPHAN, TOO_YOUNG, UNKNOWN_AGE, IN_FLIGHT, PREFIX_MISMATCH, NOT_OWNED, OTHER_TABLE, RECEIPT)

_WEIGHTS = {REACHABLE: 3, CURRENT_METADATA: 2, OPEN_PLAN: 1}
_PAIRS_SHOWN = 10


@dataclass(frozen=True)
class Limits:
    """Files last modified at `cutoff` (metadata files: `metadata_cutoff`) or later are too young. With `mismatches_go`
    a twin under another scheme or authority keeps nothing."""

    cutoff: datetime
    metadata_cutoff: datetime
    mismatches_go: bool


def classified(
    listed: DataFrame,
    known_files: DataFrame,
    grounds: Grounds,
    rules: LocationRules,
    limits: Limits,
) -> DataFrame:
    """What of `listed` no snapshot of the table reaches: DataFrame of the columns in `JUDGED`.

    `known_files` is DataFrame[location, reason] of all that is reachable or held. `twin` is the location of a known
    file that has the same path under another scheme or authority.
    """
    from pyspark.sql import functions as F

    # Both sides meet on what follows scheme and authority, so that one join finds matches and mismatches alike.
    by_key = (
        _keyed(known_files)
        .groupBy("_key")
        .agg(
            F.min("_prefix").alias("_first"),
            F.max("_prefix").alias("_last"),
            F.max_by("reason", _weight(F.col("reason"))).alias("_reason"),
        )
    )
    rows = _keyed(listed.withColumn("location", normalise_column(subject_column(F.col("path")), rules)))
    joined = rows.join(by_key, "_key", "left")
    absent = F.col("_first").isNull()
    matches = (F.col("_prefix") == F.col("_first")) | (F.col("_prefix") == F.col("_last"))
    # Three prefixes and more: the middle ones are not told apart here, and a file that may match stays.
    ambiguous = ~absent & ~matches & (F.col("_first") != F.col("_last"))
    known_reason = F.when(matches, F.col("_reason")).when(ambiguous, F.lit(REACHABLE))
    mismatch = ~absent & ~matches & ~ambiguous
    unreferenced = (
        joined.withColumn("_known", known_reason)
        .where(F.coalesce(F.col("_known"), F.lit("")) != REACHABLE)
        .withColumn("twin", F.when(mismatch, F.concat("_first", "_key")))
        .select("path", "size_in_bytes", "last_modified", "_known", "twin")
    )
    judge = _Judge(grounds, limits)
    return unreferenced.mapInArrow(judge, JUDGED)


def classified_here(
    listed: pa.Table,
    known_files: Iterable[tuple[str, str]],
    grounds: Grounds,
    rules: LocationRules,
    limits: Limits,
) -> pa.Table:
    """As `classified`, in this process: `known_files` are (location, reason)."""
    import pyarrow as pa

    by_key: dict[str, tuple[str, str, str]] = {}
    for location, reason in known_files:
        prefix, key = split_location(location)
        first, last, strongest = by_key.get(key, (prefix, prefix, reason))
        if _WEIGHTS.get(reason, 0) > _WEIGHTS.get(strongest, 0):
            strongest = reason
        by_key[key] = (min(first, prefix), max(last, prefix), strongest)
    rows, knowns, twins = [], [], []
    paths = listed.column("path").combine_chunks()
    for row, (prefix, key) in enumerate(zip(*split_paths(paths, rules), strict=True)):
        first, last, known = by_key.get(key, (prefix, prefix, ""))
        twin = None
        if prefix not in (first, last):
            # As in `classified`: with three prefixes and more, a file that may match stays.
            known, twin = (REACHABLE, None) if first != last else ("", f"{first}{key}")
        if known != REACHABLE:
            rows.append(row)
            knowns.append(known or None)
            twins.append(twin)
    unreferenced = (
        listed.select(["path", "size_in_bytes", "last_modified"])
        .take(pa.array(rows, pa.int64()))
        .append_column("_known", pa.array(knowns, pa.string()))
        .append_column("twin", pa.array(twins, pa.string()))
    )
    judge = _Judge(grounds, limits)
    return pa.Table.from_batches(judge(unreferenced.combine_chunks().to_batches()), arrow_schema(JUDGED))


def split_location(location: str) -> tuple[str, str]:
    """(scheme and authority, what follows) of a location."""
    match = _PREFIX.match(location)
    prefix = match[0] if match else ""
    return prefix, location[len(prefix) :]


def split_paths(paths: pa.Array, rules: LocationRules) -> tuple[list[str], list[str]]:
    """`split_location` of the location that each path of an Arrow array is about: the first parts, and the second."""
    import pyarrow.compute as pc

    files, texts = ByFolder.of(paths), paths.to_pylist()
    prefixes: list[str] = []
    keys: list[str] = []
    for low, high in pairwise([*files.starts.tolist(), len(texts)]):
        folder = files.folder(low)
        if folder is None:
            prefix, key = split_location(normalise(texts[low], rules))
            prefixes.append(prefix)
            keys.append(key)
            continue
        prefix, key = split_location(normalise(f"{folder}/x", rules)[:-1])
        behind = len(folder) + 1
        prefixes += [prefix] * (high - low)
        keys += [key + text[behind:] for text in texts[low:high]]
    for row in pc.indices_nonzero(pc.ends_with(paths, ".crc")).to_pylist():
        prefixes[row], keys[row] = split_location(normalise(subject(texts[row]), rules))
    return prefixes, keys


def _keyed(files: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    prefix = F.regexp_extract("location", _PREFIX.pattern, 0)
    with_prefix = files.withColumn("_prefix", prefix)
    return with_prefix.withColumn("_key", F.expr("substring(location, length(_prefix) + 1)"))


def _weight(reason: Column) -> Column:
    from pyspark.sql import functions as F

    # A file with several reasons is told by the strongest; any of them keeps it.
    weight = F.lit(0)
    for name, value in _WEIGHTS.items():
        weight = F.when(reason == name, value).otherwise(weight)
    return weight


class _Judge:
    """The verdict on each unreferenced file."""

    def __init__(self, grounds: Grounds, limits: Limits) -> None:
        self.grounds = grounds
        self.limits = limits

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        limits = self.limits
        for batch in batches:
            paths, modified, known, twin = (batch.column(name) for name in ("path", "last_modified", "_known", "twin"))
            found = kinds_by_name(paths)
            of_metadata = pc.equal(found, kinds.METADATA).to_numpy(zero_copy_only=False)
            cutoffs = np.where(of_metadata, microseconds(limits.metadata_cutoff), microseconds(limits.cutoff))
            since = pc.fill_null(modified.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 0).to_numpy()
            # What is put later speaks before what was put earlier.
            verdicts = np.where(since >= cutoffs, _VERDICTS.index(TOO_YOUNG), _VERDICTS.index(ORPHAN)).astype(np.int8)
            verdicts[modified.is_null().to_numpy(zero_copy_only=False)] = _VERDICTS.index(UNKNOWN_AGE)
            places = self.grounds.of(paths)
            for row, place in places.items():
                if place == IN_FLIGHT:
                    verdicts[row] = _VERDICTS.index(place)
            if not limits.mismatches_go:
                verdicts[twin.is_valid().to_numpy(zero_copy_only=False)] = _VERDICTS.index(PREFIX_MISMATCH)
            for row, place in places.items():
                if place != IN_FLIGHT:
                    verdicts[row] = _VERDICTS.index(place)
            told = pa.DictionaryArray.from_arrays(pa.array(verdicts), pa.array(_VERDICTS)).cast(pa.string())
            yield pa.RecordBatch.from_arrays(
                [paths, batch.column("size_in_bytes"), modified, found, pc.coalesce(known, told), twin],
                ["path", "size_in_bytes", "last_modified", "kind", "verdict", "twin"],
            )


def refuse_mismatches(judged: DataFrame | pa.Table, table: str) -> None:
    """Raise PrefixMismatch, naming pairs, when any judged file is one."""
    count, pairs = _mismatches(judged)
    if not count:
        return
    named = "; ".join(f"{path} and {twin}" for path, twin in pairs)
    raise PrefixMismatch(
        f"{count:,} listed files have a reachable twin under another scheme or authority: {named}",
        table=table,
        untouched="all files",
        do="if both are one place, say so under orphans.equal_schemes or equal_authorities; "
        "if not, set orphans.prefix_mismatch: ignore (or delete)",
    )


def _mismatches(judged: DataFrame | pa.Table) -> tuple[int, list[tuple[str, str]]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(judged, pa.Table):
        found = judged.filter(pc.field("verdict") == PREFIX_MISMATCH).sort_by("path").select(["path", "twin"])
        return found.num_rows, [(row["path"], row["twin"]) for row in found.slice(0, _PAIRS_SHOWN).to_pylist()]
    from pyspark.sql import functions as F

    pairs = judged.where(F.col("verdict") == PREFIX_MISMATCH)
    with worker_errors():
        shown = pairs.select("path", "twin").orderBy("path").limit(_PAIRS_SHOWN).collect()
        return pairs.count() if shown else 0, [(row["path"], row["twin"]) for row in shown]
