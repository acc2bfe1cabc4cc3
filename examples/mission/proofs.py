"""What the demo proves, by reading: rows before and after, of every snapshot that stays. Belongs here: fingerprints of
rows, and the judgment on them. Does not belong: anything that is asserted and not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_PER_TABLE = 80
"""Snapshots of one table that are read, before and after; of more than that, a sample."""

_THREADS = 4


@dataclass(frozen=True)
class Fingerprint:
    """A set of rows: how many, and the sum of their 64-bit hashes, which no order changes."""

    rows: int
    checksum: str


@dataclass(frozen=True)
class Proof:
    """A claim about a table, whether what was computed bears it out, and the numbers."""

    table: str
    claim: str
    holds: bool
    detail: str


def fingerprint(frame: DataFrame) -> Fingerprint:
    """Hash every column of every row, nulls as such, by the columns that the frame itself has."""
    from pyspark.sql import functions as F

    # xxhash64 passes over nulls: without the flags (1, null) and (null, 1) would be one row.
    parts = [part for name in sorted(frame.columns) for part in (F.col(f"`{name}`"), F.col(f"`{name}`").isNull())]
    hashed = frame.select(F.xxhash64(*parts).cast("decimal(20,0)").alias("hash"))
    # One task for these few files: a shuffle would cost more than the reading.
    row = hashed.coalesce(1).agg(F.count("*").alias("rows"), F.sum("hash").alias("checksum")).collect()[0]
    return Fingerprint(int(row["rows"]), str(row["checksum"] if row["checksum"] is not None else 0))


def snapshot_frame(spark: SparkSession, table: str, snapshot_id: int) -> DataFrame:
    """The rows of one snapshot of `catalog.namespace.table`, under the schema that it was written with."""
    return spark.read.option("versionAsOf", snapshot_id).table(table)


def fingerprints(
    spark: SparkSession,
    wanted: Sequence[tuple[str, int]],
    on_done: Callable[[str], None] = lambda table: None,
) -> dict[tuple[str, int], Fingerprint]:
    """Fingerprints of (`catalog.namespace.table`, snapshot id), several at once; `on_done` hears the table of each."""

    def one(key: tuple[str, int]) -> tuple[tuple[str, int], Fingerprint]:
        found = fingerprint(snapshot_frame(spark, *key))
        on_done(key[0])
        return key, found

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="proof") as pool:
        return dict(pool.map(one, wanted))


def sample(snapshot_ids: Sequence[int], always: Collection[int], most: int = MOST_PER_TABLE) -> tuple[int, ...]:
    """At most `most` ids in their order: first and last, those of `always`, and the rest evenly."""
    if len(snapshot_ids) <= most:
        return tuple(snapshot_ids)
    chosen = {snapshot_ids[0], snapshot_ids[-1], *(each for each in snapshot_ids if each in always)}
    rest = [each for each in snapshot_ids if each not in chosen]
    room = max(0, most - len(chosen))
    chosen.update(rest[index * len(rest) // room] for index in range(room))
    return tuple(each for each in snapshot_ids if each in chosen)


def prove_kept(
    table: str,
    live_ids: Sequence[int],
    before: Mapping[int, Fingerprint],
    after: Mapping[int, Fingerprint],
    made_meanwhile: Collection[int] = (),
) -> Proof:
    """Every snapshot that the live table still has reads as it did. `made_meanwhile` are commits of the walk itself."""
    old = [snapshot for snapshot in live_ids if snapshot not in made_meanwhile]
    read = [snapshot for snapshot in old if snapshot in before and snapshot in after]
    differing = [snapshot for snapshot in read if before[snapshot] != after[snapshot]]
    rows = sum(after[snapshot].rows for snapshot in read)
    scope = f"all {len(old)}" if len(read) == len(old) else f"{len(read)} of {len(old)} (sampled)"
    detail = f"{scope} kept snapshots read, {rows:,} rows, by count and hash"
    if differing:
        first = differing[0]
        detail += f"; {len(differing)} differ, first {first}: {before[first]} before, {after[first]} after"
    # Nothing read is nothing proven.
    return Proof(table, "every kept snapshot reads the same rows as before", bool(read) and not differing, detail)


def prove_cold(
    table: str,
    snapshot_id: int | None,
    tier: str,
    still_live: bool,
    before: Fingerprint | None,
    after: Fingerprint | None,
) -> Proof:
    """An expired snapshot is gone from the live table and reads from the cold catalog as it did from the live one."""
    claim = "an expired snapshot reads the same rows from the cold catalog"
    if snapshot_id is None or before is None or after is None:
        return Proof(table, claim, False, "no snapshot expired, so that nothing could be read from cold")
    holds = tier == "cold" and not still_live and before == after
    detail = f"snapshot {snapshot_id}, {after.rows:,} rows, from the {tier} catalog"
    if still_live:
        detail += "; the live table still has it"
    if before != after:
        detail += f"; {before} before, {after} after"
    return Proof(table, claim, holds, detail)


def prove_restored(
    table: str, snapshot_id: int, restored_id: int, copied_files: int, before: Fingerprint, after: Fingerprint
) -> Proof:
    """An expired snapshot is in the live table again, as a new one, from copies of the cold tier's files."""
    holds = restored_id != snapshot_id and copied_files > 0 and before == after
    detail = f"snapshot {snapshot_id} as {restored_id}, {after.rows:,} rows, {copied_files:,} files copied back"
    if before != after:
        detail += f"; {before} before, {after} after"
    return Proof(table, "an expired snapshot, restored to a branch, reads the same rows", holds, detail)


def prove_thawed(
    table: str,
    snapshot_id: int | None,
    files: int,
    refused_before: bool,
    before: Fingerprint | None,
    after: Fingerprint | None,
) -> Proof:
    """A snapshot of the deep archive cannot be read until a second person approved its thaw; then it reads the same."""
    claim = "an archived snapshot, thawed on a second person's approval, reads the same rows"
    if snapshot_id is None or before is None or after is None:
        return Proof(table, claim, False, "no snapshot went to the deep archive, so that nothing could be thawed")
    holds = refused_before and files > 0 and before == after
    detail = f"snapshot {snapshot_id}, {after.rows:,} rows, {files:,} files thawed"
    if not refused_before:
        detail += "; it was readable before"
    if before != after:
        detail += f"; {before} before, {after} after"
    return Proof(table, claim, holds, detail)


def prove_in_flight(
    table: str, files: int, present: int, expected: Fingerprint, read: Fingerprint, snapshot_id: int
) -> Proof:
    """The files of a writer that was at work all the while are there, its commit went through, and its rows read."""
    holds = present == files and expected == read and files > 0
    detail = f"{present} of {files} files there after the walk, committed as {snapshot_id}, {read.rows:,} rows read"
    if expected != read:
        detail += f"; {expected} were written"
    return Proof(table, "the writer in flight commits after the walk, and its rows read", holds, detail)


def prove_gate(
    table: str,
    passed: Mapping[str, int],
    refusals: Mapping[str, str],
    added: int,
    *,
    expected: int = 1,
    skipped: str = "",
) -> Proof:
    """With the lineage gate enabled, the writers' commits passed and every commit without lineage was refused.
    `passed` counts commits by writer; `refusals` are by engine, empty for one that got in; `added` counts the snapshots
    that the table has more, of which `expected` are commits with lineage; `skipped` says why REST was not tried."""
    let_in = [engine for engine, refusal in refusals.items() if not refusal]
    unnamed = passed.get("", 0)
    holds = len(passed) > 1 and not unnamed and bool(refusals) and not let_in and added == expected
    writers = ", ".join(f"{writer} {commits:,}" for writer, commits in sorted(passed.items()) if writer)
    detail = f"{sum(passed.values()):,} commits with their lineage passed ({writers}); refused: " + "; ".join(
        f"{engine} ({refusal[:60]}…)" for engine, refusal in refusals.items() if refusal
    )
    if skipped:
        detail += f"; REST was skipped: {skipped}"
    if let_in or unnamed or added != expected:
        detail += f"; got in: {', '.join(let_in)}, {added} snapshots more, {unnamed} without a writer"
    return Proof(table, "the lineage gate refuses a commit that does not record who wrote it", holds, detail)


def prove_debris(table: str, origin: str, files: int, left: int, *, should_stay: bool) -> Proof:
    """What other hands left behind is gone, or, where it may still be a writer's, has stayed."""
    claim = f"what the {origin} left {'stays' if should_stay else 'is removed'}"
    holds = files > 0 and left == (files if should_stay else 0)
    return Proof(table, claim, holds, f"{left} of {files} files are there")
