"""What a deletion is judged with: stores, catalog and Postgres, the table's rules, and which deletion asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.plans import PlanRecord
from artemis_lifecycle.protection.absence import Absence
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.reached import Pointer
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DeletionKind = Literal["expiration", "orphans", "dropped", "purge", "deep_archive", "cold_scan"]
"""An expiration deletes what the table's own metadata named, a deep archive moves such files away; the others are after
what nobody names. A cold scan only tells of it."""


class TablesOfCatalog(Protocol):
    """What protection asks of a catalog; `catalogs.live.CatalogReader` is one."""

    def tables(self) -> list[str]: ...

    def entry(self, table: str) -> Pointer: ...

    def pointers(self) -> Mapping[str, Pointer]: ...


class ColdTables(Protocol):
    """The cold tables of one live table, as one table (`cold_tier.cold_side`)."""

    def current(self) -> TableMetadata:
        """Its metadata, as of the catalog's rows now: the same object as before where they are the same."""

    def index(self, metadata: TableMetadata) -> IndexView:
        """Over all that it reaches. Raises UnreadableMetadata."""


class Deletion(Protocol):
    """Which deletion asks: a job of the journal, a scan, a purge. `snapshot_ids` are those whose files go: an
    expiration plan's, a deep archive's."""

    @property
    def job_id(self) -> str: ...

    @property
    def kind(self) -> DeletionKind: ...

    @property
    def table(self) -> str: ...

    @property
    def table_uuid(self) -> str: ...

    @property
    def snapshot_ids(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Asking:
    """A `Deletion` that is not a job of the journal: a scan, a purge, a question."""

    job_id: str
    kind: DeletionKind
    table: str
    table_uuid: str
    snapshot_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class DeletionContext:
    """Everything that the decision about one table's files depends on, beside the files.

    `stores` are the tier's that the files are in. They reach `root`, too, unless `root_stores` do.

    `catalog` has the other tables, and `catalog_name` keys the ones that were dropped. `reserved` are the other tiers'
    roots, which no table owns. An orphan scan collects only below `roots` (empty: anywhere). `hidden` keeps or scans
    names that start with `_` or `.`. `isolated` names tables of which a person says that they read no other's files.
    """

    spark: SparkSession
    stores: Stores
    operations: Operations
    catalog: TablesOfCatalog
    catalog_name: str
    table: str
    root: str
    rules: LocationRules
    rules_of: Callable[[str], LocationRules]
    root_stores: Stores | None = None
    reserved: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    hidden: Literal["keep", "scan"] = "keep"
    isolated: Callable[[str], bool] = lambda table: False
    confirm: Callable[[], None] = lambda: None
    """Raises what stands against every deletion as of now: another deployment has the catalog, or clocks disagree."""

    own: tuple[str, ...] | None = None
    """Where this deletion may take files from, if not from the table's own locations: a job's place in quarantine."""

    dropped: Absence | None = None
    """Set where the table was dropped: then nothing of its own is reachable, and it must not be in the catalog."""

    cold: ColdTables | None = None
    """Set for files of the cold tier: `catalog` is the cold one then, without the tables that these are."""

    missing_copies: Callable[[pa.Array], NDArray[np.bool_]] | None = None
    """Which of a plan's files have a promised archived copy that the cold store does not have now."""

    archived: Callable[[str], Collection[int]] = lambda table_uuid: ()
    """The snapshots that the cold tables of a table have."""

    overtaken: Callable[[PlanRecord, TableMetadata], TableMetadata | None] = lambda plan, metadata: None
    """What an open plan still has to archive and the table's metadata no longer has: another tool expired it."""

    @property
    def records(self) -> Stores:
        """What reaches `root`."""
        return self.stores if self.root_stores is None else self.root_stores

    def entry(self) -> Pointer:
        """The table's entry in the catalog, read now. Raises NoSuchTable."""
        return self.catalog.entry(self.table) if self.dropped is None else self.dropped.pointer()

    @property
    def last_metadata(self) -> TableMetadata | None:
        """What is known of a table that was dropped."""
        return None if self.dropped is None else self.dropped.metadata
