"""What the tests of this room share: tables with a history, fingerprints of their rows, and a look at every field of a
cold table that could hold a path."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from artemis_lifecycle.catalogs.commit import commit_with_retry
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import pyiceberg_properties, require_uri
from artemis_lifecycle.cold_tier.cold_tables import ColdTables, cold_identity
from artemis_lifecycle.cold_tier.demand import Demand
from artemis_lifecycle.cold_tier.evolution import Ids
from artemis_lifecycle.cold_tier.handoff import Handoff, hand_off
from artemis_lifecycle.cold_tier.ledger import Ledger, handoff_ledger
from artemis_lifecycle.cold_tier.paths import PathMapping, read_identity
from artemis_lifecycle.cold_tier.restore import restore
from artemis_lifecycle.cold_tier.restore_ids import RestoreContext, Restored, RestoreMapping, RestoreRequest
from artemis_lifecycle.cold_tier.transfer import HandoffContext, HandoffInput, TransferSettings
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests import core_tables

Print = tuple[int, str]


def fingerprint(frame: DataFrame) -> Print:
    """Count and order-independent hash of all rows, and the columns they have. These tables are small: their rows
    cost less than an aggregation in Spark."""
    rows = sorted(repr(tuple(row)) for row in frame.collect())
    return len(rows), f"{sha256(repr(rows).encode()).hexdigest()}:{','.join(frame.columns)}"


@dataclass
class World:
    spark: SparkSession
    config: LifecycleConfig
    stores: Stores = field(default_factory=Stores)
    known: dict[int, Print] = field(default_factory=dict)

    @property
    def live(self) -> str:
        return self.config.catalogs.live.name

    @property
    def cold(self) -> str:
        return self.config.catalogs.cold.name

    @property
    def live_root(self) -> Path:
        return _folder(self.config.catalogs.live.warehouse)

    @property
    def cold_root(self) -> Path:
        return _folder(self.config.catalogs.cold.warehouse)

    def sql(self, statement: str) -> DataFrame:
        statement = statement.replace("{live}", self.live).replace("{cold}", self.cold)
        return core_tables.sql(self.spark, statement)

    def location(self, catalog: Catalog, table: str) -> str:
        with CatalogReader(catalog) as reader:
            return reader.entry(table).metadata_location

    def metadata(self, table: str = "ns.t", *, tier: str = "live") -> TableMetadata:
        catalog = getattr(self.config.catalogs, tier)
        return read_table_metadata(self.stores, self.location(catalog, table))

    def ids(self, table: str = "ns.t") -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.metadata(table).snapshots]

    def context(self, **more: Any) -> HandoffContext:
        context = HandoffContext(
            spark=self.spark,
            live_stores=self.stores,
            cold_stores=self.stores,
            config=self.config,
            settings=TransferSettings(files_per_batch=12),
        )
        return replace(context, **more)

    def plan(
        self, snapshot_ids: Sequence[int] | None = None, table: str = "ns.t", plan_id: str | None = None
    ) -> HandoffInput:
        """All snapshots but the current one, or those given."""
        metadata = self.metadata(table)
        ids = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id != metadata.current_snapshot_id]
        return HandoffInput(
            plan_id=plan_id or uuid.uuid4().hex,
            table=table,
            table_uuid=metadata.table_uuid,
            base_metadata_location=metadata.metadata_location,
            snapshot_ids=tuple(ids if snapshot_ids is None else snapshot_ids),
        )

    def hand_off(self, plan: HandoffInput | None = None, **more: Any) -> Handoff:
        approved, overtaken = more.pop("approved", ()), more.pop("overtaken", ())
        return hand_off(self.context(**more), plan or self.plan(), approved=approved, overtaken=overtaken)

    def demand(self, plan: HandoffInput) -> tuple[Demand, Ledger]:
        """What `plan` wants in cold, and what was ever copied for its table."""
        metadata = read_table_metadata(self.stores, plan.base_metadata_location)
        identity = cold_identity(self.context(), plan.table, plan.table_uuid, metadata.location)
        ledger = handoff_ledger(self.stores, self.context().root, plan.table_uuid)
        return Demand(metadata, plan.snapshot_ids, PathMapping(identity)), ledger

    def demand_back(self, plan: HandoffInput) -> Demand:
        """The way back of the snapshots of `plan`, which was handed off."""
        demand, ledger = self.demand(plan)
        identity = cold_identity(self.context(), plan.table, plan.table_uuid, demand.metadata.location)
        mapping = RestoreMapping(identity, f"{demand.metadata.location}/restored/somewhere", Ids())
        return Demand(self.metadata(plan.table, tier="cold"), plan.snapshot_ids, mapping, ledger)

    def restore(self, snapshot_id: int, branch: str, table: str = "ns.t") -> Restored:
        """Bring a snapshot back, whether or not it is gone from the live table."""
        live = self.metadata(table)
        gone = replace(live, snapshots=tuple(s for s in live.snapshots if s.snapshot_id != snapshot_id))
        with Operations.open(require_uri(self.config.catalogs.live)) as operations:
            context = RestoreContext(
                spark=self.spark,
                live_stores=self.stores,
                cold_stores=self.stores,
                operations=operations,
                commit_table=partial(commit_with_retry, self.spark, self.live),
                live_catalog=self.live,
                root=self.context().root,
                settings=TransferSettings(files_per_batch=12),
            )
            return restore(
                context,
                RestoreRequest(table, live.table_uuid, snapshot_id, branch, who="a test"),
                gone,
                self.metadata(table, tier="cold"),
                read_identity(self.stores, context.root, live.table_uuid),
            )

    def cold_tables(self, table_uuid: str) -> ColdTables | None:
        with CatalogReader(self.config.catalogs.cold) as catalog:
            return ColdTables.open(catalog, self.stores, self.stores, self.context().root, table_uuid)

    def rows(self, tier: str, snapshot_id: int, table: str = "ns.t") -> DataFrame:
        catalog = self.live if tier == "live" else self.cold
        return self.spark.read.option("versionAsOf", snapshot_id).table(f"{catalog}.{table}")

    def prints(self, tier: str, ids: Sequence[int], table: str = "ns.t") -> dict[int, Print]:
        return {snapshot_id: fingerprint(self.rows(tier, snapshot_id, table)) for snapshot_id in ids}

    def before(self, ids: Sequence[int]) -> dict[int, Print]:
        """As `prints` of the live table, where its history was written once and printed then."""
        return {snapshot_id: self.known[snapshot_id] for snapshot_id in ids}

    def python_rows(self, tier: str, ids: Sequence[int], table: str = "ns.t") -> dict[int, list[str]]:
        """Rows as pyiceberg reads them, sorted; none of a format version that it cannot read."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import ValidationError

        catalog: Catalog = getattr(self.config.catalogs, tier)
        try:
            loaded = load_catalog(catalog.name, **pyiceberg_properties(catalog)).load_table(table)
        except ValidationError as error:
            if "Input tag '4'" in str(error):
                return {}
            raise
        return {
            snapshot_id: sorted(repr(row) for row in loaded.scan(snapshot_id=snapshot_id).to_arrow().to_pylist())
            for snapshot_id in ids
        }

    def without_live(self) -> _Hidden:
        return _Hidden(self.live_root)

    def without_cold(self) -> _Hidden:
        return _Hidden(self.cold_root)


class _Hidden:
    """A warehouse renamed away while the block runs: whatever reads it then fails."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> None:
        self._root.rename(self._root.with_name("moved-away"))

    def __exit__(self, *_: object) -> None:
        self._root.with_name("moved-away").rename(self._root)


def _folder(warehouse: str | None) -> Path:
    assert warehouse is not None
    return Path(warehouse.removeprefix("file://"))


def tree(root: Path) -> dict[str, bytes]:
    """Every file below `root`, by its path from there."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def named_paths(root: Path) -> Iterator[tuple[str, str, str]]:
    """(file, field, value) of every text in every metadata file, manifest list, manifest, delete file and Puffin footer
    below `root`. Fields are spelled as the file nests them."""
    for path in sorted(root.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        if path.name.endswith(".metadata.json"):
            texts: Iterator[tuple[str, str]] = _texts(json.loads(data), "")
        elif data[:4] == b"Obj\x01":
            reader: Any = fastavro.reader(io.BytesIO(data))
            texts = (found for record in reader for found in _texts(record, ""))
        elif data[:4] == b"PFA1":
            size = int.from_bytes(data[-12:-8], "little")
            texts = _texts(json.loads(data[-12 - size : -12]), "")
        elif data[:4] == b"PAR1":
            frame = pq.read_table(io.BytesIO(data))
            names = [name for name in ("file_path",) if name in frame.column_names and "pos" in frame.column_names]
            texts = ((name, value) for name in names for value in set(frame.column(name).to_pylist()))
            texts = iter([*texts, *_statistics(data, names)])
        else:
            continue
        for name, value in texts:
            yield str(path.relative_to(root)), name, value


def _statistics(data: bytes, names: list[str]) -> list[tuple[str, str]]:
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    found = []
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            if column.path_in_schema in names and column.statistics is not None:
                found += [("statistics", column.statistics.min), ("statistics", column.statistics.max)]
    return found


def _texts(value: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{field}.{key}" if field else str(key))
    elif isinstance(value, list):
        for item in value:
            # Bounds are pairs: the column's id says which column the value belongs to.
            name = f"{field}[{item['key']}]" if isinstance(item, dict) and set(item) == {"key", "value"} else field
            yield from _texts(item["value"] if name != field else item, name)
    elif isinstance(value, bytes):
        yield field, value.decode("utf-8", "replace")
    elif isinstance(value, str):
        yield field, value


History = Callable[[World], None]
