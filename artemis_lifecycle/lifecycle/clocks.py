"""More than one clock. Belongs here: whether Postgres, this host and the object stores agree on the time. Does not
belong: what is judged by it.

Postgres' clock decides ages, windows and graces. One clock that is a month ahead would make every file old and every
grace over, and nothing else would notice.
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
"""How the name of a probe begins: hidden, so that nothing takes one that a kill left behind for a table's file."""

_log = escaping.logger(__name__)
_RESOLUTION = timedelta(seconds=1)
"""S3 tells the time of an object in whole seconds, rounded down."""


@dataclass(frozen=True)
class Folder:
    """A folder in whose store a probe may be written."""

    path: str
    stores: Stores

    @property
    def clock(self) -> str:
        """What its files' times are told by: a disk (it may be a server's, mounted here), or a bucket."""
        if not is_local(self.path):
            place = split(self.path)
            return f"{place.scheme}://{place.authority}"
        there = Path(local_path(self.path))
        while not there.exists():
            there = there.parent
        return f"device {there.stat().st_dev}"


def host_now() -> datetime:
    """This host's time, in UTC."""
    return datetime.now(UTC)


def require_agreement(postgres_now: Callable[[], datetime], folders: Iterable[Folder], most: timedelta) -> None:
    """Raise ClocksDisagree when Postgres, this host and the stores of `folders` differ by more than `most`.

    Writes a tiny file into each folder and removes it again. How long a question takes is not a difference. Raises
    StorageError where a probe cannot be written, OperationsUnavailable.
    """
    asked, told, answered = host_now(), postgres_now(), host_now()
    ahead = {"Postgres": _ahead(told, asked, answered), "this host": timedelta(0)}
    for folder in folders:
        ahead[f"the store of {folder.path}"] = _store_ahead(folder)
    if max(ahead.values()) - min(ahead.values()) <= most:
        return
    now = host_now()
    clocks = ", ".join(f"{name} says {now + by:%Y-%m-%d %H:%M:%S} UTC" for name, by in ahead.items())
    raise ClocksDisagree(
        f"Clocks differ by more than {format_duration(most)} (clocks.max_difference): {clocks}",
        untouched="everything that was not done before",
        hint="set the clock that is wrong (NTP), then run this again",
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
                _log.warning("A probe of the store's clock was left behind: %s: %s", probe, left.error)
    if found is None or found.last_modified is None:
        raise ClocksDisagree(
            "The store does not say when a file was written, so nothing in it has an age",
            path=folder.path,
            untouched="everything that was not done before",
            hint="use a store that tells modification times",
        )
    return _ahead(found.last_modified, asked - _RESOLUTION, host_now())


def _ahead(told: datetime, earliest: datetime, latest: datetime) -> timedelta:
    """How far `told` is ahead of (behind: negative) a clock that said `earliest` before and `latest` after it."""
    return told - min(max(told, earliest), latest)
