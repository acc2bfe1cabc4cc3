"""Builds the cold table's metadata file from the live table's and the previous cold one. Pure: JSON in, JSON out;
unknown fields are kept. Source: format/spec.md, "Table Metadata"; Iceberg's TableMetadata for what its parser refuses.

The snapshot log is the live table's complete log, including ids that the cold table does not have. So an engine that
looks up an instant may get an id that is absent, and fails instead of answering from an older snapshot. The parser
accepts absent ids. It requires entries in time order, and none later than `last-updated-ms` (both to the minute).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from types import MappingProxyType
from typing import Any

from artemis_lifecycle import escaping
from artemis_lifecycle.cold_tier.cold_split import (
    CLOSED_TABLES,
    Json,
    begins_at,
    by_commit,
    closed_tables,
    history_order,
    log_between,
)
from artemis_lifecycle.cold_tier.cold_split import UNKNOWN_SNAPSHOT as UNKNOWN_SNAPSHOT
from artemis_lifecycle.cold_tier.evolution import NAME_MAPPING, NO_MAPPING, ORDERS, SCHEMAS, SPECS, Joint, merged
from artemis_lifecycle.cold_tier.paths import ColdIdentity, Placing
from artemis_lifecycle.errors import HandoffFailed, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.lines import CLOCK_TOLERANCE_MS, CONTINUES, Line, file_name
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import MAIN_BRANCH, NAMED_BY_SNAPSHOT, Snapshot, TableMetadata
from artemis_lifecycle.protection.ownership import LOCATION_PROPERTIES
from artemis_lifecycle.storage.stores import Stores

# --- tags -------------------------------------------------------------------------------------------------------------
# What a tag pointed to over time: its history, which the newest cold table keeps as a property. Iceberg keeps only a
# ref's current snapshot.

_log = escaping.logger(__name__)

TAGS = "artemis.tags"
"""A property of the newest cold table: a history, as JSON `[[name, snapshot-id, since-ms, until-ms or null], …]`."""

Refs = Mapping[str, int]
"""The snapshot of each ref except `main`."""


@dataclass(frozen=True)
class Meaning:
    """From `since_ms` until before `until_ms` (None: still), the ref `name` pointed to that snapshot."""

    name: str
    snapshot_id: int
    since_ms: int
    until_ms: int | None = None


def history_of(properties: Mapping[str, str] | None) -> tuple[Meaning, ...]:
    """Return the history from a cold table's properties. Raises UnreadableMetadata if it is damaged."""
    text = (properties or {}).get(TAGS)
    try:
        return () if text is None else tuple(Meaning(*each) for each in json.loads(text))
    except (ValueError, TypeError) as error:
        raise UnreadableMetadata(
            f"The cold table's history of tags ({TAGS}) cannot be read: {error}",
            untouched="both tiers",
            hint="restore the cold table's metadata file",
        ) from error


def written(history: Sequence[Meaning]) -> str:
    return json.dumps([astuple(each) for each in history], separators=(",", ":"))


def continued(history: Sequence[Meaning], states: Iterable[tuple[int, Refs | None]]) -> tuple[Meaning, ...]:
    """Return the history, continued by the refs as they were from each of these instants on (epoch ms, in time order).
    If the refs are unknown (None), no period continues."""
    known = list(history)
    for at, recorded in states:
        refs: Refs = {} if recorded is None else recorded
        now = {each.name: number for number, each in enumerate(known) if each.until_ms is None}
        for ref, number in now.items():
            if refs.get(ref) != known[number].snapshot_id:
                known[number] = replace(known[number], until_ms=max(at, known[number].since_ms))
        known += [
            Meaning(ref, snapshot_id, at)
            for ref, snapshot_id in sorted(refs.items())
            if ref not in now or known[now[ref]].snapshot_id != snapshot_id
        ]
    return tuple(known)


def last(history: Iterable[Meaning], name: str) -> int | None:
    """Return the snapshot that a ref points to, or pointed to at its end."""
    found = [each for each in history if each.name == name]
    return found[-1].snapshot_id if found else None


def at(history: Iterable[Meaning], name: str, at_ms: int) -> int | None:
    """Return the snapshot that a ref pointed to at an instant."""
    found = [
        each
        for each in history
        if each.name == name and each.since_ms <= at_ms and (each.until_ms is None or at_ms < each.until_ms)
    ]
    return found[-1].snapshot_id if found else None


def refs_of(metadata: TableMetadata) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in metadata.refs.items() if name != MAIN_BRANCH}


def former_states(stores: Stores, live: TableMetadata, after_ms: int) -> Iterator[tuple[int, Refs | None]]:
    """Yield the refs in each metadata file of the table's log after `after_ms`, newest first, with the instant from
    which the file was current; None if the file is unreadable. A branch that still exists has its current snapshot,
    because it moves with each commit."""
    branches = {name: ref.snapshot_id for name, ref in live.refs.items() if ref.is_branch and name != MAIN_BRANCH}
    reached = after_ms == 0
    for entry in reversed(live.metadata_log):
        if entry.timestamp_ms <= after_ms:
            reached = True
            break
        try:
            then = read_table_metadata(stores, entry.metadata_file)
        except (UnreadableMetadata, StorageError) as error:
            # The file is gone, or its store is not accessible: a moved table lists files at its old place.
            _log.info("The snapshots of tags from %s on are unknown: %s", entry.timestamp_ms, error.what)
            yield entry.timestamp_ms, None
            continue
        # A tag may have had a branch's name.
        still = {name: head for name, head in branches.items() if name in then.refs and then.refs[name].is_branch}
        yield entry.timestamp_ms, {**refs_of(then), **still}
    if not reached:
        yield after_ms + 1, None


COMPLETE_UNTIL = "artemis.log-complete-until-ms"
"""A property of the cold table: up to this time its snapshot log is the live table's complete log."""

SEEN_UNTIL = "artemis.log-seen-until-ms"
"""A property of the cold table: when (by Postgres) a step last saw the table in the state with which its log ends."""

ARCHIVE_OF = "artemis.archive-of"

RESTORED_SNAPSHOT = "artemis.restored-snapshot-id"
"""A key of a restored snapshot's summary: the source snapshot."""

ARCHIVED_FROM = "artemis.archived-from"
"""A property of the cold table: the newest live metadata file from which a handoff archived, as JSON `[ms, name]`: when
it was written, and what it is called."""

_METADATA_LOG_ENTRIES = 20
_HIGHEST = ("last-sequence-number", "last-column-id", "last-partition-id", "next-row-id")


def snapshot_ids(metadata: Json | None) -> set[int]:
    return set() if metadata is None else {snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ()}


def build_metadata(
    live: Json,
    cold: Json | None,
    cold_location_now: str | None,
    archived: Collection[int],
    identity: ColdIdentity,
    mapped: Placing,
    mapping: Joint = NO_MAPPING,
    tags: Sequence[Meaning] = (),
    base_location: str | None = None,
    reset: bool = False,
    seen_ms: int = 0,
) -> Json:
    """Return the next metadata of the cold table: the snapshots of `cold` (stored at `cold_location_now`) plus the
    `archived` snapshots of `live`. If closed tables precede it, it remains their continuation (`cold_split`).

    `mapped` gives the archive's paths and ids. `mapping` is the name mapping for files without field ids. `tags` is the
    history of refs so far; the table's refs are the last snapshot of each, if the table has it. `base_location` is
    where `live` is stored, `seen_ms` when a step last saw its current snapshot; `reset` is as for `continued_log`.
    `evolution.with_current` sets what is current. Raises HandoffFailed.
    """
    new = _joined(live, cold, cold_location_now, archived, identity, mapped, tags)
    known_before = 0 if cold is None else complete_until(cold)
    commits = [live["last-updated-ms"], *(entry["timestamp-ms"] for entry in live.get("metadata-log") or ())]
    log, lineage = live.get("snapshot-log") or (), lineage_of(cold, live)
    new["snapshot-log"] = continued_log(cold, log, lineage, commits, reset=reset)
    latest = max((entry["timestamp-ms"] for entry in new["snapshot-log"]), default=0)
    new["last-updated-ms"] = max(live["last-updated-ms"], latest, 0 if cold is None else cold["last-updated-ms"] + 1)
    new["properties"] = _properties(live, identity, mapping, max(live["last-updated-ms"], known_before))
    seen_ms = max(seen_ms, int(((cold or {}).get("properties") or {}).get(SEEN_UNTIL, 0)))
    if seen_ms:
        new["properties"][SEEN_UNTIL] = str(seen_ms)
    if tags:
        new["properties"][TAGS] = written(tags)
    former = ((cold or {}).get("properties") or {}).get(ARCHIVED_FROM)
    if base_location is not None and live["last-updated-ms"] >= known_before:
        former = json.dumps([live["last-updated-ms"], file_name(base_location)])
    if former is not None:
        new["properties"][ARCHIVED_FROM] = former
    closed = ((cold or {}).get("properties") or {}).get(CLOSED_TABLES)
    if closed is not None:
        new["properties"][CLOSED_TABLES] = closed
    return new


def add_late(
    live: Json,
    closed: Json,
    location_now: str,
    archived: Collection[int],
    identity: ColdIdentity,
    mapped: Placing,
    mapping: Joint = NO_MAPPING,
    tags: Sequence[Meaning] = (),
) -> Json:
    """Return the next metadata of a closed cold table, stored at `location_now`, with snapshots of `live` that expired
    after it was closed. Its log already has them. Raises what `build_metadata` raises."""
    return {
        **_joined(live, closed, location_now, archived, identity, mapped, tags),
        "table-uuid": closed["table-uuid"],
        "snapshot-log": closed["snapshot-log"],
        "last-updated-ms": closed["last-updated-ms"] + 1,
        "properties": _properties(live, identity, mapping, complete_until(closed)),
    }


def without_moved_refs(closed: Json, location_now: str | None, tags: Sequence[Meaning]) -> Json | None:
    """Return the next metadata of a closed cold table if some of its refs now point to other snapshots, else None."""
    means, named = {each.name: each.snapshot_id for each in tags}, closed.get("refs") or {}
    refs = {name: ref for name, ref in named.items() if means.get(name, ref["snapshot-id"]) == ref["snapshot-id"]}
    if refs == named:
        return None
    later = {**closed, "refs": refs, "last-updated-ms": closed["last-updated-ms"] + 1}
    return later if location_now is None else {**later, "metadata-log": _metadata_log(closed, location_now)}


def _joined(
    live: Json,
    cold: Json | None,
    cold_location_now: str | None,
    archived: Collection[int],
    identity: ColdIdentity,
    mapped: Placing,
    tags: Sequence[Meaning],
) -> Json:
    """Return `cold` with the `archived` snapshots of `live`: everything except the log, the properties and the update
    time."""
    if cold is not None and cold["format-version"] > live["format-version"]:
        raise HandoffFailed(
            f"The cold table has format version {cold['format-version']}, the plan's base has {live['format-version']}",
            table=identity.live_table,
            untouched="both tables",
            hint="plan again, on the table's current state",
        )
    new = dict(live)
    new["location"] = identity.cold_location
    before = snapshot_ids(cold)
    added = [
        _cold_snapshot(snapshot, live, mapped) for snapshot in live["snapshots"] if snapshot["snapshot-id"] in archived
    ]
    kept = [] if cold is None else list(cold["snapshots"])
    snapshots = kept + [snapshot for snapshot in added if snapshot["snapshot-id"] not in before]
    new["snapshots"] = sorted(snapshots, key=history_order)
    newest = max(snapshots, key=by_commit)["snapshot-id"]
    new["current-snapshot-id"] = newest
    new["refs"] = _refs(cold, tags, newest, snapshot_ids(new))
    new.update(merged(live, cold, mapped.ids))
    for key, number in (("current-schema-id", SCHEMAS), ("default-spec-id", SPECS), ("default-sort-order-id", ORDERS)):
        if key in live:
            new[key] = mapped.ids.of(number).get(live[key], live[key])
    for key in _HIGHEST:
        values = [metadata[key] for metadata in (live, cold or {}) if metadata.get(key) is not None]
        if values:
            new[key] = max(values)
    for key in NAMED_BY_SNAPSHOT:
        _merge_statistics(new, live, cold, key, archived, mapped)
    new["metadata-log"] = _metadata_log(cold, cold_location_now)
    return new


def _cold_snapshot(snapshot: Json, live: Json, mapped: Placing) -> Json:
    changed = dict(snapshot)
    # Without a schema id, engines use the table's current schema, which differs here.
    schema_id = changed.get("schema-id")
    schema_id = live.get("current-schema-id") if schema_id is None else schema_id
    if schema_id is not None:
        changed["schema-id"] = mapped.ids.schemas.get(schema_id, schema_id)
    if changed.get("manifest-list") is not None:
        changed["manifest-list"] = mapped.used(changed["manifest-list"], snapshot["snapshot-id"])
    if changed.get("manifests") is not None:
        changed["manifests"] = [mapped(path) for path in changed["manifests"]]
    return changed


def _refs(cold: Json | None, tags: Sequence[Meaning], newest: int, present: set[int]) -> Json:
    """Return the refs. Their retention is over; only the names stay. A branch gets no more commits here, so it becomes
    a tag."""
    known = {each.name: each.snapshot_id for each in tags}
    # For refs from handoffs before ref histories existed, nothing else is known.
    former = {name: ref["snapshot-id"] for name, ref in ((cold or {}).get("refs") or {}).items() if name not in known}
    refs = {
        name: {"snapshot-id": snapshot_id, "type": "tag"}
        for name, snapshot_id in {**former, **known}.items()
        if name != "main" and snapshot_id in present
    }
    return {**refs, "main": {"snapshot-id": newest, "type": "branch"}}


def complete_until(cold: Json) -> int:
    """Return up to when (epoch ms) the cold table's log is the live table's complete log."""
    recorded = (cold.get("properties") or {}).get(COMPLETE_UNTIL)
    return (
        int(recorded)
        if recorded is not None
        else max((e["timestamp-ms"] for e in cold.get("snapshot-log") or ()), default=0)
    )


def seen_until(cold: Json) -> int:
    """Return until when (epoch ms) what is last in the cold table's log was seen to be current."""
    return max(complete_until(cold), int((cold.get("properties") or {}).get(SEEN_UNTIL, 0)))


def _properties(live: Json, identity: ColdIdentity, mapping: Joint, known_until: int) -> dict[str, str]:
    not_ours = {*LOCATION_PROPERTIES, CLOSED_TABLES, NAME_MAPPING, TAGS, ARCHIVED_FROM, CONTINUES, SEEN_UNTIL}
    properties = {key: value for key, value in (live.get("properties") or {}).items() if key not in not_ours}
    # So that no engine's maintenance ever removes a file of the archive.
    properties["gc.enabled"] = "false"
    properties[ARCHIVE_OF] = identity.live_table
    if mapping.mapping is not None:
        properties[NAME_MAPPING] = mapping.mapping
    properties[COMPLETE_UNTIL] = str(known_until)
    return properties


def _merge_statistics(
    new: Json, live: Json, cold: Json | None, key: str, archived: Collection[int], mapped: Placing
) -> None:
    kept = list((cold or {}).get(key) or ())
    have = {entry["snapshot-id"] for entry in kept}
    for entry in live.get(key) or ():
        if entry["snapshot-id"] in archived and entry["snapshot-id"] not in have:
            kept.append({**entry, "statistics-path": mapped.used(entry["statistics-path"], entry["snapshot-id"])})
    if kept or key in live:
        new[key] = kept


def _metadata_log(cold: Json | None, location: str | None) -> list[Json]:
    if cold is None or location is None:
        return []
    log = [*(cold.get("metadata-log") or ()), {"timestamp-ms": cold["last-updated-ms"], "metadata-file": location}]
    return log[-_METADATA_LOG_ENTRIES:]


Lineage = Mapping[int, tuple[int | None, int]]
"""The parent and the sequence number (0: unknown) of snapshots, by id. Restores make snapshots without a parent, of
which nothing is missing: these have themselves."""


def lineage_of(*tables: Json | None) -> Lineage:
    return {
        each["snapshot-id"]: (
            each["snapshot-id"] if RESTORED_SNAPSHOT in (each.get("summary") or {}) else each.get("parent-snapshot-id"),
            each.get("sequence-number") or 0,
        )
        for table in tables
        for each in (table or {}).get("snapshots") or ()
    }


def line_of(cold: TableMetadata) -> Line:
    """Return the line of metadata that the newest cold table's handoffs archived."""
    latest = max((each.timestamp_ms for each in cold.snapshot_log), default=0)
    updated, file = int(cold.properties.get(COMPLETE_UNTIL, latest)), None
    if ARCHIVED_FROM in cold.properties:
        updated, file = json.loads(cold.properties[ARCHIVED_FROM])
    return replace(Line.of(cold), file=file, updated_ms=updated, files={}, continues=None)


def whole_log(
    live: TableMetadata, former: Json, snapshots: Iterable[Snapshot], *, reset: bool
) -> list[tuple[int, int]]:
    """Return the snapshot log of the table's whole past (epoch ms, id): `former`, a log that earlier records kept, and
    the live table's. A table that was reset goes on with its own state from when it was last seen in the lost one;
    where the two contradict each other, its own log takes precedence as far as it reaches. `snapshots` are those of
    both tiers."""
    own = [{"timestamp-ms": each.timestamp_ms, "snapshot-id": each.snapshot_id} for each in live.snapshot_log]
    lineage: Lineage = {
        each.snapshot_id: (
            each.snapshot_id if each.summary.get(RESTORED_SNAPSHOT) else each.parent_snapshot_id,
            each.sequence_number,
        )
        for each in snapshots
    }
    try:
        commits = [live.last_updated_ms, *(each.timestamp_ms for each in live.metadata_log)]
        whole = continued_log(former, own, lineage, commits, reset=reset)
    except Diverged as apart:
        begins = min((entry["timestamp-ms"] for entry in own), default=apart.at_ms)
        whole = [each for each in former.get("snapshot-log") or () if each["timestamp-ms"] < min(apart.at_ms, begins)]
        if apart.at_ms < begins:
            whole.append({"timestamp-ms": apart.at_ms, "snapshot-id": UNKNOWN_SNAPSHOT})
        whole += own
    return [_entry(each) for each in whole]


def continued_log(
    cold: Json | None,
    live_log: Sequence[Json],
    lineage: Lineage = MappingProxyType({}),
    commits: Iterable[int] = (),
    *,
    reset: bool = False,
) -> list[Json]:
    """Return the newest cold table's log, continued by the live table's; of both, only the part after the closed
    tables. `lineage` has their snapshots' parents and sequence numbers, `commits` the times of the live line's commits.

    `reset` means that the live table went back to an earlier state. Until a step last saw the lost line, that was
    current; from the live line's first commit after that on, the live line is. When it went back in between is unknown;
    before such a commit, the live line answers. Raises Diverged.
    """
    if cold is None:
        return _with_holes(live_log, lineage, 0)
    older, known_until = cold.get("snapshot-log") or (), complete_until(cold)
    since = begins_at(closed_tables(cold.get("properties")))
    newer = log_between(live_log, since, None)
    if reset and since is not None:
        # What was current then in the line that was lost is in `cold`.
        newer = [entry for entry in live_log if entry["timestamp-ms"] >= since]
    merged = merge_logs(older, newer, known_until)
    if reset and older and merged[: len(older)] == list(older):
        seen = seen_until(cold)
        began = min((each for each in commits if each > seen), default=seen + 1)
        again = snapshot_at([_entry(item) for item in live_log], began)
        turn = {began: again, seen + 1: UNKNOWN_SNAPSHOT} if began > seen + 1 else {began: again}
        between = [{"timestamp-ms": at, "snapshot-id": turn[at]} for at in sorted(turn) if turn[at] is not None]
        after = merged[len(older) :]
        # Nobody saw the table after its last known commit, and a later one may bear a time of just before it.
        hole = [each for each in after if seen == known_until and seen >= each["timestamp-ms"]]
        merged[len(older) :] = [*hole, *between, *(each for each in after if each["timestamp-ms"] > seen)]
    return _with_holes(merged, lineage, len(older))


def _with_holes(log: Sequence[Json], lineage: Lineage, begins: int) -> list[Json]:
    """Return `log` with an UNKNOWN_SNAPSHOT entry before each entry from `begins` on whose predecessor is missing:
    pyiceberg removes an expired snapshot from the middle of the log, and from its children's parent fields."""
    whole = list(log[:begins])
    before = {entry["snapshot-id"] for entry in whole}
    for entry in log[begins:]:
        snapshot_id, last = entry["snapshot-id"], whole[-1] if whole else None
        parent, number = lineage.get(snapshot_id, (None, 0))
        _, former = lineage.get(last["snapshot-id"], (None, 0)) if last is not None else (None, 0)
        # Without a parent, a snapshot is the first of all, the first of a replaced table, or its parent was removed.
        # Each commit has the sequence number that follows the previous commit's.
        if last is not None and parent is None and snapshot_id not in before and 0 < former < number - 1:
            after = last["timestamp-ms"] + 1
            if after < entry["timestamp-ms"]:
                whole.append({"timestamp-ms": after, "snapshot-id": UNKNOWN_SNAPSHOT})
        whole.append(entry)
        before.add(snapshot_id)
    return whole


class Diverged(Exception):  # noqa: N818  (handled in this room)
    """Two logs do not have a common history: the two tables with one uuid diverged at `at_ms`."""

    def __init__(self, at_ms: int) -> None:
        super().__init__(f"the two logs differ from {at_ms} on")
        self.at_ms = at_ms


def merge_logs(older: Sequence[Json], newer: Sequence[Json], known_until: int) -> list[Json]:
    """Return the log `older`, which is complete up to `known_until`, continued by `newer`, whose beginning the live
    table may have removed.

    If they do not overlap, entries in between are lost. The result then has UNKNOWN_SNAPSHOT until `newer` begins. Lost
    entries may have a commit time up to a minute too early, as Iceberg allows. Raises Diverged if `newer` does not
    continue `older`: the table was registered under two names that diverged, or was reset to an earlier state.
    """
    first, second = [_entry(item) for item in older], [_entry(item) for item in newer]
    if not first or not second:
        return [*older, *newer]
    places = {entry: number for number, entry in enumerate(first)}
    shared = [number for number, entry in enumerate(second) if entry in places]
    # In the period that `older` covers completely, `newer` may lack entries (pyiceberg removes expired snapshots from
    # the middle), but has no others, and the same order.
    strange = [at for at, _ in (second[number] for number in set(range(len(second))).difference(shared))]
    begins = (shared[-1] if shared else -1) + 1
    apart = [at for at, _ in second[: max(begins - 1, 0)] if at in strange]
    apart += [at for at in strange if at < known_until - CLOCK_TOLERANCE_MS]
    if apart or [places[second[number]] for number in shared] != sorted(places[second[number]] for number in shared):
        raise Diverged(min(apart, default=second[0][0]))
    if shared:
        return [*older, *newer[begins:]]
    return [*older, *_unknown(first, known_until, second[0][0]), *newer]


def _unknown(first: Sequence[tuple[int, int]], known_until: int, until: int) -> list[Json]:
    """Return the entries that mark unknown periods, placed between known entries in time order. The answer for an
    instant is the entry with the latest time before it."""
    whole_until = max(known_until, *(at for at, _ in first))
    begins = whole_until - CLOCK_TOLERANCE_MS + 1
    known = {at for at, _ in first}
    times = {begins, *(at + 1 for at in known if at >= begins), whole_until + 1}
    return [{"timestamp-ms": at, "snapshot-id": UNKNOWN_SNAPSHOT} for at in sorted(times - known) if at < until]


def _entry(item: Json) -> tuple[int, int]:
    return item["timestamp-ms"], item["snapshot-id"]


def snapshot_at(log: Iterable[tuple[int, int]], instant_ms: int) -> int | None:
    """Return the snapshot id that the log (time, id) has for an instant, like Iceberg's SnapshotUtil. None before its
    start."""
    best = entry_at(log, instant_ms)
    return None if best is None else best[1]


def entry_at(log: Iterable[tuple[int, int]], instant_ms: int) -> tuple[int, int] | None:
    """Return the entry of the log (time, id) that answers for an instant; None before its start."""
    return max((each for each in log if each[0] <= instant_ms), key=lambda each: each[0], default=None)


def metadata_path(identity: ColdIdentity, plan_id: str, cold_location_now: str | None, table: str | None = None) -> str:
    """Return the path of a handoff's metadata file for a cold table. One plan on one base has one name, so that a retry
    writes the same file."""
    number = 0
    if cold_location_now is not None:
        match = re.match(r"(\d+)-", cold_location_now.rpartition("/")[2])
        number = int(match[1]) + 1 if match else 0
    which = "" if table in (None, identity.cold_table) else f"|{table}"
    name = uuid.uuid5(uuid.UUID(identity.table_uuid), f"{plan_id}|{cold_location_now or ''}{which}")
    return f"{identity.cold_location}/metadata/{number:05d}-{name}.metadata.json"


def to_bytes(metadata: Mapping[str, Any]) -> bytes:
    return json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode()
