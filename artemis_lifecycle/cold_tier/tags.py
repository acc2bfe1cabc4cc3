"""What a tag pointed to over time: its history, which the newest cold table keeps as a property. Iceberg keeps only a
ref's current snapshot. Belongs here: continuing the history from the live table's metadata files. Does not belong here:
which tier has the snapshot of a tag."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import MAIN_BRANCH, TableMetadata
from artemis_lifecycle.storage.stores import Stores

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
    branches = {name for name, ref in live.refs.items() if ref.is_branch}
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
        now = {name: live.refs[name].snapshot_id for name in branches if name in then.refs and name != MAIN_BRANCH}
        others = {name: each for name, each in refs_of(then).items() if name not in branches}
        yield entry.timestamp_ms, {**now, **others}
    if not reached:
        yield after_ms + 1, None
