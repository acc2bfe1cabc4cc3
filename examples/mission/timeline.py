"""Setting a history back in time. Belongs here: which simulated instant a real one stands for, and putting it into
metadata files and on the files themselves. Does not belong: writing the history.

Spark commits now; the mission committed over more than a year. What is written between the real start of one event and
the next belongs to the first, and keeps its distance from that start. Order, and the time within an event, stay true.
"""

from __future__ import annotations

import json
import os
import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.sql import publish
from artemis_lifecycle.metadata.types import CatalogEntry
from artemis_lifecycle.storage.local.store import local_path
from artemis_lifecycle.storage.stores import Stores

_MS = timedelta(milliseconds=1)


@dataclass
class Timeline:
    """Real starts of events, in ms, beside the instants that they stand for, in ms; both ascending."""

    real_ms: list[int] = field(default_factory=list)
    simulated_ms: list[int] = field(default_factory=list)

    def begin(self, real_ms: int, simulated: datetime) -> None:
        """An event that stands for `simulated` begins now, at `real_ms`. Both must be later than the last one's."""
        instant = simulated.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        simulated_ms = instant // _MS
        if self.real_ms and (real_ms <= self.real_ms[-1] or simulated_ms <= self.simulated_ms[-1]):
            raise ValueError("events must be begun in their order")
        self.real_ms.append(real_ms)
        self.simulated_ms.append(simulated_ms)

    def at(self, real_ms: int) -> int:
        """The simulated instant, in ms, of a real one, in ms. Later is later; before the first event is its start."""
        index = bisect_right(self.real_ms, real_ms) - 1
        if index < 0:
            return self.simulated_ms[0]
        moved = self.simulated_ms[index] + real_ms - self.real_ms[index]
        if index + 1 < len(self.simulated_ms):
            # An event that took longer than the time to the next one must not overtake it.
            moved = min(moved, self.simulated_ms[index + 1] - 1)
        return moved


def set_back_document(document: Mapping[str, Any], timeline: Timeline) -> dict[str, Any]:
    """A metadata file's JSON with every time in it moved; nothing else is touched, unknown fields neither."""
    moved = dict(document)
    moved["last-updated-ms"] = timeline.at(document["last-updated-ms"])
    for key in ("snapshots", "snapshot-log", "metadata-log"):
        if key in document:
            moved[key] = [{**entry, "timestamp-ms": timeline.at(entry["timestamp-ms"])} for entry in document[key]]
    return moved


def set_back(
    stores: Stores, catalog: CatalogReader, engine: Engine, entry: CatalogEntry, timeline: Timeline
) -> CatalogEntry:
    """Move a table's history to where `timeline` puts it: metadata files, the catalog's row, and times of all files.

    The current metadata gets a successor, as after a commit, and the row is swapped to it by compare-and-swap. Older
    metadata files of the log, which are not current, are rewritten in place.
    """
    document: dict[str, Any] = json.loads(stores.read(entry.metadata_location))
    location = str(document["location"])
    for old in document.get("metadata-log", ()):
        earlier = json.loads(stores.read(old["metadata-file"]))
        _rewrite(stores, old["metadata-file"], set_back_document(earlier, timeline))
    successor = set_back_document(document, timeline)
    _rewrite(stores, entry.metadata_location, dict(successor))
    made = successor["last-updated-ms"]
    successor["metadata-log"] = [
        *successor.get("metadata-log", ()),
        {"timestamp-ms": made, "metadata-file": entry.metadata_location},
    ]
    successor["last-updated-ms"] = made + 1
    folder, _, name = entry.metadata_location.rpartition("/")
    new_location = f"{folder}/{int(name.split('-')[0]) + 1:05d}-{uuid.uuid4()}.metadata.json"
    # By name, which has a uuid: the log and the listing may spell one location in two ways.
    stamps = {str(old["metadata-file"]).rpartition("/")[2]: old["timestamp-ms"] for old in successor["metadata-log"]}
    _touch_all(stores, location, timeline, stamps)
    stores.write(new_location, json.dumps(successor).encode())
    _set_modified(new_location, made + 1)
    with engine.begin() as connection:
        return publish(
            connection,
            entry.catalog,
            entry.identifier,
            expected_location=entry.metadata_location,
            new_location=new_location,
        )


def _rewrite(stores: Stores, path: str, document: Mapping[str, Any]) -> None:
    stores.write(path, json.dumps(document).encode(), overwrite=True)


def _touch_all(stores: Stores, location: str, timeline: Timeline, stamps: Mapping[str, int]) -> None:
    """Every file gets the time of its event; rewritten metadata files theirs from `stamps`, by name."""
    files = list(stores.list(location))

    def touch(part: Sequence[Any]) -> None:
        for file in part:
            stamp = stamps.get(file.path.rpartition("/")[2])
            if stamp is None:
                assert file.last_modified is not None
                stamp = timeline.at((file.last_modified - datetime(1970, 1, 1, tzinfo=UTC)) // _MS)
            _set_modified(file.path, stamp)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(touch, [files[::2], files[1::2]]))


def _set_modified(path: str, ms: int) -> None:
    os.utime(local_path(path), (ms / 1000, ms / 1000))
