"""The request, the context and the result of a restore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier.evolution import Ids
from artemis_lifecycle.cold_tier.paths import ColdIdentity
from artemis_lifecycle.cold_tier.transfer import TransferSettings
from artemis_lifecycle.errors import RestoreFailed
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RestoreRequest:
    """Restore `snapshot_id` of the cold tier to `branch` of the live table. `summary` has the lineage keys of the
    commit: who made it, and why."""

    table: str
    table_uuid: str
    snapshot_id: int
    branch: str
    who: str
    why: str | None = None
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RestoreContext:
    """What a restore needs. `check` raises when the worker's lease is lost; `require_lineage` raises when the live
    table would refuse a commit with that summary. `noted` returns what of it a commit without a snapshot notes.
    `archive` is the table's newest cold table, where a closed one has the snapshot."""

    spark: SparkSession
    live_stores: Stores
    cold_stores: Stores
    operations: Operations
    live_catalog: str
    root: str
    settings: TransferSettings = field(default_factory=TransferSettings)
    check: Callable[[], None] = lambda: None
    require_lineage: Callable[[Mapping[str, str]], None] = lambda summary: None
    noted: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda summary: {}
    archive: TableMetadata | None = None
    rules: LocationRules = field(default_factory=LocationRules)


@dataclass(frozen=True)
class Restored:
    """The result of a restore: `branch` has the rows of `source_snapshot_id` as its snapshot `snapshot_id`. If the live
    table still had the snapshot, both ids are equal and nothing was copied. Sizes in bytes; every copied file was
    verified. `numbered_anew` says that the table's catalog was put back, and from where its numbers go on."""

    table: str
    source_snapshot_id: int
    branch: str
    snapshot_id: int
    metadata_location: str
    restore_id: str | None = None
    copied_files: int = 0
    copied_bytes: int = 0
    rewritten_files: int = 0
    attempts: int = 0
    numbered_anew: str | None = None


class RestoreMapping:
    """Maps a path in the cold tier to the restore's folder. Picklable."""

    def __init__(self, identity: ColdIdentity, folder: str, ids: Ids) -> None:
        self._roots = (
            (identity.cold_location.rstrip("/") + "/", f"{folder}/table/"),
            (identity.cold_warehouse.rstrip("/") + "/", f"{folder}/warehouse/"),
        )
        self._folder = folder + "/"
        self.rules = identity.rules
        self.ids = ids

    def __call__(self, path: str) -> str:
        for root, place in self._roots:
            if path.startswith(root):
                return place + path[len(root) :]
        raise RestoreFailed(
            "The cold table references a file outside the cold warehouse",
            path=path,
            untouched="the live table",
            hint="find out who wrote that metadata: no handoff did",
        )

    def used(self, path: str, added_by: int | None) -> str:
        return self(path)  # In cold, each file has its own path.

    def meant(self, path: str, deleted_by: int | None) -> str:
        return self(path)

    def owns(self, path: str) -> bool:
        return path.startswith(self._folder)
