"""What a table's snapshots reach, from the Iceberg spec and over the model alone: plain sets, no reader, no paths.

Spec, "Snapshots", "Manifest Lists", "Manifests", "Table Statistics": a snapshot's files are its manifest list, the
manifests that the list names, the files of their entries that are not DELETED, and the statistics files of its id.
"""

from __future__ import annotations

from collections.abc import Collection

from artemis_lifecycle.metadata.types import LogEntry
from artemis_lifecycle.retention.rules import HistoryView
from artemis_lifecycle_tests.reachability.metadata_tables import File, MetadataTable
from artemis_lifecycle_tests.reachability.writers import DELETED
from artemis_lifecycle_tests.retention import oracle as retention

Reached = dict[File, set[str]]
"""Each file, with the kinds under which it is known; nearly always one."""


def reached_by(table: MetadataTable, snapshot_id: int) -> Reached:
    """All that one snapshot reaches."""
    found: Reached = {}

    def add(file: File, kind: str) -> None:
        found.setdefault(file, set()).add(kind)

    held = table.held[snapshot_id]
    if held.list_file is not None:
        add(held.list_file, "manifest_list")
    for manifest, _ in held.manifests:
        add(manifest.file, "manifest")
        for entry, file in manifest.entries:
            if entry.status != DELETED:
                add(file, _kind(entry.content, entry.format))
    for each in table.statistics:
        if each.snapshot_id == snapshot_id:
            add(each.file, each.kind)
    return found


def _kind(content: int, file_format: str) -> str:
    if content == 1 and file_format.lower() == "puffin":
        return "deletion_vectors"
    return ("data", "position_deletes", "equality_deletes")[content]


def reachable(table: MetadataTable, ids: Collection[int]) -> Reached:
    """All that the snapshots of these ids reach."""
    union: Reached = {}
    for snapshot_id in ids:
        for file, kinds in reached_by(table, snapshot_id).items():
            union.setdefault(file, set()).update(kinds)
    return union


def deletable(table: MetadataTable, expired: Collection[int]) -> Reached:
    """What some expired snapshot reaches, and no other snapshot does; nor any statistics entry that stays."""
    kept = set(reachable(table, set(table.ids()) - set(expired)))
    kept |= {each.file for each in table.statistics if each.snapshot_id not in expired}
    return {file: kinds for file, kinds in reachable(table, expired).items() if file not in kept}


def holders(table: MetadataTable, file: File) -> tuple[int, ...]:
    """The snapshots that reach `file`, in the metadata's order."""
    return tuple(snapshot_id for snapshot_id in table.ids() if file in reached_by(table, snapshot_id))


# --- which snapshots stay ---------------------------------------------------------------------------------------------


def kept_by_iceberg(
    history: HistoryView, now: int, *, older_than: int | None, explicit: Collection[int], held: Collection[int]
) -> set[int]:
    """Rule `iceberg` with holds."""
    kept, _ = retention.kept_by_iceberg(history, now, older_than=older_than, retain_last=None, explicit=explicit)
    return kept | set(held)


def kept_as_of(history: HistoryView, now: int, *, window: int, held: Collection[int]) -> set[int]:
    """Rule `as-of`: as `iceberg`, and every snapshot from the first one on that the log needs to answer in the window.

    For histories whose log names no absent snapshot.
    """
    kept, _ = retention.kept_by_iceberg(history, now, older_than=now - window, retain_last=None)
    edge = min(now - window, now)
    answering = {
        position
        for instant in retention.instants(history.log, edge, now)
        if (position := _answering(history.log, instant)) is not None
    }
    first = min(answering, default=len(history.log))
    return kept | set(held) | {entry.snapshot_id for entry in list(history.log)[first:]}


def _answering(log: Collection[LogEntry], instant: int) -> int | None:
    best: tuple[int, int] | None = None
    for position, entry in enumerate(log):
        if entry.timestamp_ms <= instant and (best is None or entry.timestamp_ms > best[0]):
            best = (entry.timestamp_ms, position)
    return None if best is None else best[1]


def kept_by_paimon(
    history: HistoryView,
    now: int,
    *,
    window: int,
    least: int,
    most: int | None,
    limit: int | None,
    held: Collection[int],
) -> set[int]:
    """Rule `paimon`, which numbers snapshots and expires from the old end; refs and holds stay where they are."""
    ids = [snapshot.snapshot_id for snapshot in history.snapshots]
    refs = retention.live_refs(history, now)
    pinned = {ref.snapshot_id for ref in refs.values()} | set(held)
    for ref in refs.values():
        if ref.type == "branch" and (ref.max_snapshot_age_ms, ref.min_snapshots_to_keep) != (None, None):
            chain = retention.lineage(history, ref.snapshot_id)
            age, count = ref.max_snapshot_age_ms, ref.min_snapshots_to_keep or 1
            for number, snapshot in enumerate(chain):
                if number >= count and (age is None or snapshot.timestamp_ms < now - age):
                    break
                pinned.add(snapshot.snapshot_id)
    pinned &= set(ids)
    numbers = {number: snapshot.timestamp_ms for number, snapshot in enumerate(history.snapshots)}
    loose = [number for number in numbers if ids[number] not in pinned]
    if not loose:
        return set(ids)
    survivors = retention.paimon_survivors(
        {number: at for number, at in numbers.items() if number >= loose[0]},
        now=now,
        time_retained=window,
        retain_min=least,
        retain_max=2**31 - 1 if most is None else most,
        limit=2**31 - 1 if limit is None else limit,
    )
    return pinned | {ids[number] for number in survivors}
