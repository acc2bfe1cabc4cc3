"""Agreement of clocks. Belongs here: whether Postgres, this host and the object stores agree on the time. Does not
belong here: decisions that use the time.

The Postgres clock decides ages, windows and graces. If it were a month ahead, every file would be old and every grace
over, and nothing else would detect it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from artemis_lifecycle import escaping
from artemis_lifecycle.config.durations import format_duration
from artemis_lifecycle.errors import ClocksDisagree
from artemis_lifecycle.storage.local.paths import local_path
from artemis_lifecycle.storage.location import split
from artemis_lifecycle.storage.stores import Stores, is_local

PROBE = ".artemis-clock-"
"""The prefix of a probe's name. It is hidden, so that a probe left behind by a kill is not taken for a table's file."""

_log = escaping.logger(__name__)
_RESOLUTION = timedelta(seconds=1)
"""S3 stores an object's time in whole seconds, rounded down."""


@dataclass(frozen=True)
class Folder:
    """A folder to whose store a probe may be written."""

    path: str
    stores: Stores

    @property
    def clock(self) -> str:
        """The clock that sets its files' times: that of a disk (possibly on a server), or of a bucket."""
        if not is_local(self.path):
            place = split(self.path)
            return f"{place.scheme}://{place.authority}"
        existing = Path(local_path(self.path))
        while not existing.exists():
            existing = existing.parent
        return f"device {existing.stat().st_dev}"


def host_now() -> datetime:
    """Return this host's time in UTC."""
    return datetime.now(UTC)


def require_agreement(postgres_now: Callable[[], datetime], folders: Iterable[Folder], most: timedelta) -> None:
    """Raise ClocksDisagree if Postgres, this host and the stores of `folders` differ by more than `most`.

    Writes a tiny file into each folder and removes it again. The duration of a request does not count as a difference.
    Raises StorageError if a probe cannot be written, OperationsUnavailable.
    """
    asked, reported, answered = host_now(), postgres_now(), host_now()
    ahead = {"Postgres": _ahead(reported, asked, answered), "this host": timedelta(0)}
    for folder in folders:
        ahead[f"the store of {folder.path}"] = _store_ahead(folder)
    if max(ahead.values()) - min(ahead.values()) <= most:
        return
    now = host_now()
    clocks = ", ".join(f"{name} says {now + by:%Y-%m-%d %H:%M:%S} UTC" for name, by in ahead.items())
    raise ClocksDisagree(
        f"Clocks differ by more than {format_duration(most)} (clocks.max_difference): {clocks}",
        untouched="everything that was not done before",
        hint="correct the wrong clock (NTP), then run this again",
    )


def _store_ahead(folder: Folder) -> timedelta:
    probe = f"{folder.path.rstrip('/')}/{PROBE}{uuid.uuid4().hex}"
    asked = host_now()
    try:
        folder.stores.write(probe, b"What time is it?", storage_class="STANDARD")
        found = folder.stores.head(probe)
    finally:
        for left in folder.stores.delete([probe]):
            if left.outcome == "failed":
                _log.warning("A probe of the store's clock could not be removed: %s: %s", probe, left.error)
    if found is None or found.last_modified is None:
        raise ClocksDisagree(
            "The store does not report when a file was written, so its files have no age",
            path=folder.path,
            untouched="everything that was not done before",
            hint="use a store that reports modification times",
        )
    return _ahead(found.last_modified, asked - _RESOLUTION, host_now())


def _ahead(shown: datetime, earliest: datetime, latest: datetime) -> timedelta:
    """Return how far `shown` is ahead of (behind: negative) a clock that showed `earliest` before and `latest` after
    it."""
    return shown - min(max(shown, earliest), latest)
