"""What a tag meant, and when: its history, which the newest cold table keeps as a property. Iceberg keeps only what a
ref means now. Belongs here: continuing the history by what the live table's metadata files say. Does not belong: which
tier has the snapshot that a tag meant.
"""

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
"""The newest cold table's property: a history, as JSON `[[name, snapshot-id, since-ms, until-ms or null], …]`."""

Refs = Mapping[str, int]
"""The snapshot of each ref but `main`."""


@dataclass(frozen=True)
class Meaning:
    """From `since_ms` until before `until_ms` (None: still) the ref `name` meant that snapshot."""

    name: str
    snapshot_id: int
    since_ms: int
    until_ms: int | None = None


def history_of(properties: Mapping[str, str] | None) -> tuple[Meaning, ...]:
    """What a cold table's properties say. Raises UnreadableMetadata for a damaged history."""
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
    """The history, continued by what the refs were from each of these instants on (epoch ms, in order of time); where
    that is not known (None), no meaning goes on."""
    known = list(history)
    for at, told in states:
        refs: Refs = {} if told is None else told
        now = {each.name: number for number, each in enumerate(known) if each.until_ms is None}
        for name, number in now.items():
            if refs.get(name) != known[number].snapshot_id:
                known[number] = replace(known[number], until_ms=max(at, known[number].since_ms))
        known += [
            Meaning(name, snapshot_id, at)
            for name, snapshot_id in sorted(refs.items())
            if name not in now or known[now[name]].snapshot_id != snapshot_id
        ]
    return tuple(known)


def last(history: Iterable[Meaning], name: str) -> int | None:
    """The snapshot that a ref meant at its end, or means."""
    found = [each for each in history if each.name == name]
    return found[-1].snapshot_id if found else None


def at(history: Iterable[Meaning], name: str, at_ms: int) -> int | None:
    """The snapshot that a ref meant at an instant."""
    found = [
        each
        for each in history
        if each.name == name and each.since_ms <= at_ms and (each.until_ms is None or at_ms < each.until_ms)
    ]
    return found[-1].snapshot_id if found else None


def refs_of(metadata: TableMetadata) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in metadata.refs.items() if name != MAIN_BRANCH}


def former_states(stores: Stores, live: TableMetadata, after_ms: int) -> Iterator[tuple[int, Refs | None]]:
    """The refs as each metadata file of the table's log says that is from later than `after_ms`, the newest first, with
    the instant from which on it was the table's; None where no file tells. A branch that the table still has is
    given as it is now, because it moves with each commit.
    """
    branches = {name for name, ref in live.refs.items() if ref.is_branch}
    reached = after_ms == 0
    for entry in reversed(live.metadata_log):
        if entry.timestamp_ms <= after_ms:
            reached = True
            break
        try:
            then = read_table_metadata(stores, entry.metadata_file)
        except (UnreadableMetadata, StorageError) as error:
            # Gone, or where this deployment cannot read: a table that was moved names files of its old place.
            _log.info("What tags meant from %s on is not known: %s", entry.timestamp_ms, error.what)
            yield entry.timestamp_ms, None
            continue
        now = {name: live.refs[name].snapshot_id for name in branches if name in then.refs and name != MAIN_BRANCH}
        others = {name: each for name, each in refs_of(then).items() if name not in branches}
        yield entry.timestamp_ms, {**now, **others}
    if not reached:
        yield after_ms + 1, None
