"""A table's manifest index as a value: where it is, what it belongs to, how it is read. Belongs here: the settings, and
reading bytes of the index. Does not belong: building it (`refresh.py`), asking it (`files.py`, `lookups.py` …).

The index is a cache. It is keyed by table-uuid, holds nothing that the metadata does not say, and can be deleted at any
time. A reader trusts a part only if its checksum holds and it belongs to this table, this hash and these rules; it
reads anything else again. `docs/decisions/0008-manifest-index.md` has the whole reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.reachability.index.array_file import DamagedIndex
from artemis_lifecycle.reachability.index.cache import cached
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.location_hash import HASH_NAME
from artemis_lifecycle.storage.stores import Stores

FORMAT = 1
"""Raised whenever the layout or the meaning of the index's files changes: others are rebuilt."""


@dataclass(frozen=True)
class IndexSettings:
    """How metadata is read. Up to `lists_here` lists, and manifests of `bytes_here` in all, are read in `threads` of
    this process; more goes to Spark's executors, in at most `concurrency` tasks at a time (None: as many as there are
    cores).
    """

    threads: int = 8
    lists_here: int = 1_500
    bytes_here: int = 16 << 20
    concurrency: int | None = None
    cache: str | None = None
    """A Redis (redis://host:port/db) in front of segments on an object store. Nothing in it is believed unchecked."""
    cache_seconds: int = 7 * 86_400

    @classmethod
    def from_config(cls, config: LifecycleConfig, table: str) -> IndexSettings:
        """What lifecycle.yaml says. Nothing stays in the cache for longer than the table's window."""
        window = config.policy(table).retention.window
        section = config.reachability
        return cls(
            threads=section.threads,
            concurrency=section.concurrency,
            cache=section.cache,
            cache_seconds=max(1, min(cls.cache_seconds, int(window.total_seconds()))),
        )


DEFAULT_SETTINGS = IndexSettings()


@dataclass(frozen=True)
class ManifestIndex:
    """A table's index under `folder`, whether it exists yet or not. `stores` reach the table's metadata, `files` the
    index's own files."""

    stores: Stores
    files: Stores
    folder: str
    rules: LocationRules
    settings: IndexSettings
    identity: Mapping[str, object]
    """What a file of the index must belong to."""

    @classmethod
    def open(
        cls,
        stores: Stores,
        root: str,
        table_uuid: str,
        rules: LocationRules,
        settings: IndexSettings = DEFAULT_SETTINGS,
        files: Stores | None = None,
    ) -> ManifestIndex:
        """The index of the table with that uuid below `root`. Without `files`, `stores` reach the index too."""
        identity = {
            "format": FORMAT,
            "table_uuid": table_uuid,
            "hash": HASH_NAME,
            "locations": rules.fingerprint(),
        }
        return cls(stores, files or stores, f"{root.rstrip('/')}/{table_uuid}", rules, settings, identity)

    def shared_by(self, tasks: int) -> ManifestIndex:
        """The index for each of so many tasks that read at once."""
        return replace(self, stores=self.stores.shared_by(tasks), files=self.files.shared_by(tasks))

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of the file `name`, from the cache where it has them; the caller checks them. Raises DamagedIndex."""
        path = f"{self.folder}/{name}"
        if not length:
            return b""
        try:
            if self.settings.cache is None:
                return self.files.read_range(path, offset, length)
            return cached(
                self.settings.cache,
                f"artemis:{path}:{offset}:{length}",
                self.settings.cache_seconds,
                lambda: self.files.read_range(path, offset, length),
            )
        except StorageError as error:
            raise DamagedIndex(f"{path}: {error.what}") from error
