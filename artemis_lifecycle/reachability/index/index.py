"""A table's manifest index as a value: its location, identity, and how it is read.

The index is a cache. Its key is the table-uuid. It contains nothing beyond the metadata, and can be deleted at any
time. A reader trusts a part only if its checksum matches and it belongs to this table, this hash and these rules; it
reads anything else again. `docs/decisions/0008-manifest-index.md` explains the design.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import ConfigError, StorageError
from artemis_lifecycle.reachability.index.array_file import DamagedIndex, IndexInMemory
from artemis_lifecycle.storage.location import HASH_NAME, LocationRules
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from artemis_lifecycle.config.models import LifecycleConfig

# --- cache ------------------------------------------------------------------------------------------------------------
# A Redis cache in front of the index's segments, for slow object stores.
#
# If Redis is unavailable, full or wrong, that costs time, but never changes an answer. It saves 0.3 s of 1.1 to 1.4 s
# for the next day's plan of 2 million files, at a store that takes 30 ms to answer a read (14 reads instead of 36).

_LARGEST = 64 << 20
_TIMEOUT_SECONDS = 2.0

_log = escaping.logger(__name__)


def cached(address: str, key: str, seconds: int, read: Callable[[], bytes]) -> bytes:
    """Return what Redis has under `key`; else the result of `read`, which is stored there for `seconds` seconds.

    Raises what `read` raises; ConfigError if the client is not installed or the address is invalid.
    """
    client, refused = _client(address)
    try:
        found = client.get(key)
        if isinstance(found, bytes):
            return found
    except refused as error:
        _log.warning("Redis did not answer, and the store is read instead: %s", error)
        return read()
    data = read()
    if len(data) <= _LARGEST:
        try:
            client.set(key, data, ex=seconds)
        except refused as error:
            _log.warning("Redis did not store a segment: %s", error)
    return data


@lru_cache(maxsize=8)
def _client(address: str) -> tuple[Any, type[Exception]]:
    try:
        import redis
    except ImportError as error:
        raise ConfigError(
            "reachability.cache is set to a Redis, but its client is not installed",
            hint="pip install 'artemis-lifecycle[redis]', or remove the key",
        ) from error
    try:
        client = redis.Redis.from_url(address, socket_timeout=_TIMEOUT_SECONDS, socket_connect_timeout=_TIMEOUT_SECONDS)
    except ValueError as error:
        raise ConfigError(
            f"reachability.cache is not a valid Redis address: {error}", hint="use redis://host:6379/0"
        ) from error
    return client, redis.RedisError


FORMAT = 1
"""Incremented whenever the layout or the meaning of the index's files changes: other versions are rebuilt."""


@dataclass(frozen=True)
class IndexSettings:
    """How metadata is read: in `threads` of this process, or elsewhere in at most `concurrency` tasks at a time (None:
    the number of cores)."""

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
    files: Stores | IndexInMemory
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
        files: Stores | IndexInMemory | None = None,
    ) -> ManifestIndex:
        """Return the index of the table with that uuid below `root`. Without `files`, `stores` also access the
        index."""
        identity = {"format": FORMAT, "table_uuid": table_uuid, "hash": HASH_NAME, "locations": rules.fingerprint()}
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
