"""Sends lineage events to a file or an HTTP address, as `lineage_events` in lifecycle.yaml says.

Events are sealed and queued together with the rows of the ledger. Each is sent at least once: what a receiver does not
take stays queued until it does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pyarrow as pa

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import Busy, LifecycleError, StorageError
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lineage.ledger import LedgerBatch, batch_location, drop_batch
from artemis_lifecycle.lineage.open_lineage import EVENT_ROWS, lineage_events
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.publications import Publication
from artemis_lifecycle.storage.frames import describe_frame, frame_batches, write_batches

_log = escaping.logger(__name__)

LINEAGE_EVENTS = "lineage_events"
_TOGETHER = 100
"""Events that are sent, and sent again, together."""
_REQUEST_SECONDS = 5.0
_REFUSED = frozenset({400, 413, 422})
"""Status codes that say something about the event itself."""
_MOST_SECONDS = 30.0
"""After so long a call begins no other part, and after twice as long it ends within one; the next call continues."""


@dataclass(frozen=True)
class LineageEvents:
    """Keeps events until they are sent, and sends them."""

    resources: Resources

    def seal(self, batch_id: str, batch: LedgerBatch, metadata: TableMetadata) -> list[str]:
        """Store the events of a batch. Return the ids under which to queue them; none if nothing receives events."""
        if self.resources.config.lineage_events.receiver is None:
            return []
        catalog = self.resources.config.catalogs.live.name
        ids = []
        for number, events in enumerate(_parts(lineage_events(batch, metadata, catalog))):
            ids.append(f"{batch_id}-{number}")
            rows = pa.RecordBatch.from_arrays([pa.array(events, pa.string())], schema=EVENT_ROWS)
            write_batches([rows], EVENT_ROWS, self._folder(ids[-1]), self.resources.live_stores)
        return ids

    def send(self) -> int:
        """Send queued events, for at most about a minute. Return how many queued parts were sent. What prevents
        that is logged, and the events stay queued: it must not fail what recorded them."""
        catalog, publications = self.resources.config.catalogs.live.name, self.resources.operations.publications
        receiver, sent = self.resources.config.lineage_events.receiver, 0
        if receiver is None or not _events(publications.pending(catalog)):
            return 0
        began = time.monotonic()
        try:
            with table_lock(self.resources.operations.engine, f"lineage_events:{catalog}", 0.0):
                for each in _events(publications.pending(catalog)):
                    if time.monotonic() - began > _MOST_SECONDS:
                        break
                    self._deliver(receiver, each, began + 2 * _MOST_SECONDS)
                    publications.published(each)
                    drop_batch(self.resources.live_stores, self.resources.root, each.job_id, LINEAGE_EVENTS)
                    sent += 1
        except Busy:
            pass
        except LifecycleError as error:
            _log.warning("Lineage events wait to be sent again: %s", error)
        return sent

    def _deliver(self, receiver: str, publication: Publication, until: float) -> None:
        folder, stores = self._folder(publication.job_id), self.resources.live_stores
        if describe_frame(folder, stores) is None:
            return  # A process that died after sending them had dropped them.
        events = [text for batch in frame_batches(folder, stores) for text in batch.column("event").to_pylist()]
        if "://" in receiver:
            token = self.resources.config.lineage_events.token
            for event in events:
                if time.monotonic() > until:
                    raise StorageError(
                        "lineage_events.url takes its events too slowly", hint="check the server at that address"
                    )
                _post(receiver, token, event)
        else:
            _append(Path(receiver), events)

    def _folder(self, job_id: str) -> str:
        return batch_location(self.resources.root, job_id, LINEAGE_EVENTS)


def _parts(events: Iterator[str]) -> Iterator[Sequence[str]]:
    while part := list(islice(events, _TOGETHER)):
        yield part


def _events(pending: Sequence[Publication]) -> list[Publication]:
    return [each for each in pending if each.result_table == LINEAGE_EVENTS]


def _append(path: Path, events: Sequence[str]) -> None:
    """Append lines durably. If a process died in the middle of a line, the next one begins on a new line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            torn = size > 0 and file.read(1) != b"\n"
            file.write((b"\n" if torn else b"") + "".join(f"{event}\n" for event in events).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(
            f"lineage_events.file cannot be written ({error.strerror})",
            path=str(path),
            hint="check the path in lifecycle.yaml",
        ) from error


def _post(url: str, token: str | None, event: str) -> None:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = Request(url, data=event.encode(), headers=headers, method="POST")
    try:
        with urlopen(request, timeout=_REQUEST_SECONDS):
            pass
    except (URLError, HTTPException, OSError, ValueError) as error:
        code = getattr(error, "code", None)
        if code in _REFUSED:
            # It would be refused forever, and hold up all events after it.
            _log.warning("A lineage event is lost, because the receiver refuses it (%s): %s", code, event[:500])
            return
        # The address may have a login in it.
        reason = code or type(getattr(error, "reason", error)).__name__
        raise StorageError(
            f"lineage_events.url does not take an event ({reason})", hint="check the address in lifecycle.yaml"
        ) from None
