"""The input and the context of a handoff."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from sqlalchemy import Connection

from artemis_lifecycle.cold_tier.transfer import TransferProgress, TransferSettings
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import ConfigError
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.journal import HandoffBatches
from artemis_lifecycle.spark.runner import Runner, Spark
from artemis_lifecycle.storage.stores import Stores


@dataclass(frozen=True)
class HandoffInput:
    """The snapshots to archive, from one metadata file of one table. `plan_id` identifies the handoff's work. `thinned`
    are snapshots of the plan that the policy does not archive. `read_base` reads the base metadata if it cannot be read
    at its own location. `current` is the live table's metadata as of now, `seen_ms` when the base was it. `named`
    records the snapshots that a refused handoff would have left out: an approval is for these."""

    plan_id: str
    table: str
    table_uuid: str
    base_metadata_location: str
    snapshot_ids: tuple[int, ...]
    thinned: tuple[int, ...] = ()
    read_base: Callable[[], bytes] | None = None
    current: TableMetadata | None = None
    seen_ms: int = 0
    named: Callable[[Collection[int]], None] = lambda snapshot_ids: None


@dataclass(frozen=True)
class HandoffContext:
    """What a handoff needs. `check` raises when the worker's lease is lost. It is called before each batch and before
    the cold catalog changes. `record` runs in the transaction that publishes, with the new metadata location, if both
    must commit together; its connection is to the cold catalog's database. `handed_off` is the cold metadata file
    that the table's newest handoff recorded in the operations database."""

    spark: Spark
    live_stores: Stores
    cold_stores: Stores
    config: LifecycleConfig
    batches: HandoffBatches | None = None
    settings: TransferSettings = field(default_factory=TransferSettings)
    check: Callable[[], None] = lambda: None
    on_progress: Callable[[TransferProgress], None] = lambda progress: None
    record: Callable[[Connection, str], None] | None = None
    handed_off: str | None = None

    @property
    def runner(self) -> Runner:
        return Runner(self.spark)

    @property
    def root(self) -> str:
        root = self.config.operations.root
        if root is None:
            raise ConfigError("operations.root is not set", hint="set it in lifecycle.yaml")
        return root
