"""A table's manifest index as a value: its location, identity, and how it is read. Belongs here: the settings, and
reading bytes of the index. Does not belong here: building it (`refresh.py`), querying it (`files.py`, `lookups.py` …).

The index is a cache. Its key is the table-uuid. It contains nothing beyond the metadata, and can be deleted at any
time. A reader trusts a part only if its checksum matches and it belongs to this table, this hash and these rules; it
reads anything else again. `docs/decisions/0008-manifest-index.md` explains the design.
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
"""Incremented whenever the layout or the meaning of the index's files changes: other versions are rebuilt."""


@dataclass(frozen=True)
class IndexSettings:
    """How metadata is read: in `threads` of this process, or by Spark's executors in at most `concurrency` tasks at a
    time (None: the number of cores)."""

    threads: int = 8
    concurrency: int | None = None
    cache: str | None = None
    """A Redis (redis://host:port/db) in front of segments on an object store. Its contents are always verified."""
    cache_seconds: int = 7 * 86_400

    @classmethod
    def from_config(cls, config: LifecycleConfig, table: str) -> IndexSettings:
        """Return the settings of lifecycle.yaml. The cache keeps nothing for longer than the table's window."""
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
    """A table's index under `folder`, even if it does not exist yet. `stores` access the table's metadata, `files` the
    index's own files."""

    stores: Stores
    files: Stores
    folder: str
    rules: LocationRules
    settings: IndexSettings
    identity: Mapping[str, object]
    """The required identity of the index's files."""

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
        """Return the index of the table with that uuid below `root`. Without `files`, `stores` also access the
        index."""
        identity = {
            "format": FORMAT,
            "table_uuid": table_uuid,
            "hash": HASH_NAME,
            "locations": rules.fingerprint(),
        }
        return cls(stores, files or stores, f"{root.rstrip('/')}/{table_uuid}", rules, settings, identity)

    def shared_by(self, tasks: int) -> ManifestIndex:
        """Return the index for each of `tasks` tasks that read at the same time."""
        return replace(self, stores=self.stores.shared_by(tasks), files=self.files.shared_by(tasks))

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """Read bytes of the file `name`, from the cache if possible. The caller verifies them. Raises DamagedIndex."""
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
