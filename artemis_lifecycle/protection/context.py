"""The context of a deletion: stores, catalog and Postgres, the table's rules, and the kind of deletion."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.catalogs.identifier import CatalogEntry
from artemis_lifecycle.config.policies import TablePolicy
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.holds import Hold
from artemis_lifecycle.operations.plans import PlanRecord
from artemis_lifecycle.protection.absence import Absence
from artemis_lifecycle.reachability.files import ReachedFiles
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.newer import newer_files
from artemis_lifecycle.reachability.reached import Pointer
from artemis_lifecycle.spark.runner import Spark
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import FileIdentity

DeletionKind = Literal["expiration", "orphans", "dropped", "purge", "deep_archive", "cold_scan"]
"""An expiration deletes files that the table's own metadata referenced; a deep archive moves such files. All others
handle files that nothing references. A cold scan only reports them."""


class TablesOfCatalog(Protocol):
    """What protection needs from a catalog, such as `catalogs.live.CatalogReader`."""

    def tables(self) -> list[str]: ...

    def entry(self, table: str) -> Pointer: ...

    def pointers(self) -> Mapping[str, Pointer]: ...

    def others(self) -> Sequence[CatalogEntry]:
        """Return every object that is not a table: views, functions, tables of other formats."""


class ColdTables(Protocol):
    """The cold tables of one live table as a single table (`cold_tier.cold_side`)."""

    def current(self) -> TableMetadata:
        """Return its metadata for the current catalog rows; the same object as before if the rows have not changed."""

    def index(self, metadata: TableMetadata) -> IndexView:
        """Return the index of everything that it reaches. Raises UnreadableMetadata."""


class ReachingTable(Protocol):
    """A table whose files are protected, such as `table_state.TableState`: it is read in full once, later only what is
    new. `other_names` returns the hashes of the other names that new files have on this machine."""

    table: str
    table_uuid: str
    metadata: TableMetadata | None
    other_names: Callable[[pa.Array], Sequence[NDArray[np.uint64]]]

    @property
    def reason(self) -> str:
        """The reason for which its files are kept."""

    def read(self) -> TableMetadata:
        """Return the current metadata. Raises StalePlan if the table is gone, UnreadableMetadata."""

    def files(self, metadata: TableMetadata) -> ReachedFiles | None:
        """Return everything that `metadata` reaches; None for a table that reaches nothing."""

    def reaches(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of these location hashes the table reaches, as of the last read."""

    def walked(self, metadata: TableMetadata) -> None:
        """Record that all of `metadata` was read."""

    def refresh(self) -> bool:
        """Read what was added since; return False if everything has to be read again."""

    @property
    def new(self) -> set[str]:
        """The locations of files that were added since."""

    @property
    def needed(self) -> set[str]:
        """The locations that the metadata needs in addition to its snapshots."""

    def later(self) -> Sequence[tuple[str, NDArray[np.uint64]]]:
        """Return reasons with the sorted hashes of the files that they keep, beyond those of `files`."""


class Deletion(Protocol):
    """The deletion that asks: a job of the journal, a scan, or a purge. `snapshot_ids` are the snapshots of an
    expiration plan or a deep archive whose files are deleted or moved."""

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
    """A `Deletion` without a job in the journal: a scan, a purge, or a question."""

    job_id: str
    kind: DeletionKind
    table: str
    table_uuid: str
    snapshot_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class ArchivedFile:
    """What the store said of a live file while it was archived, and the checksum of its bytes (None: not recorded)."""

    identity: FileIdentity
    checksum: str | None


@dataclass(frozen=True)
class DeletionContext:
    """Everything that the decision about one table's files depends on, except the files.

    `stores` are those of the files' tier. They can also access `root`, unless `root_stores` do.

    `catalog` has the other tables; `catalog_name` identifies its dropped tables. `reserved` are the other tiers' roots,
    which no table owns. An orphan scan collects only below `roots` (empty: anywhere). `policy` is what lifecycle.yaml
    says about the table. `isolated` are tables that, by a person's decision, read no other table's files.
    """

    spark: Spark
    stores: Stores
    operations: Operations
    catalog: TablesOfCatalog
    catalog_name: str
    table: str
    policy: TablePolicy
    root: str
    rules: LocationRules
    rules_of: Callable[[str], LocationRules]
    root_stores: Stores | None = None
    reserved: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    isolated: Callable[[str], bool] = lambda table: False
    confirm: Callable[[], None] = lambda: None
    """Raises the reason, if any, why every deletion must stop now: another deployment uses the catalog, or clocks
    disagree."""

    other_catalogs: tuple[str, ...] = ()
    """The other live catalogs, whose dropped tables are readers, too."""

    configured: tuple[str, ...] = ()
    """All catalogs that are asked in each deletion. What was seen in any other one counts for its time."""

    marked: tuple[str, ...] = ()
    """Catalogs with references: each of their tables is all of its live versions together."""

    own: tuple[str, ...] | None = None
    """Where this deletion may take files from, if not from the table's own locations: a job's quarantine folder."""

    dropped: Absence | None = None
    """Set if the table was dropped. Then it reaches nothing, and must not be in the catalog."""

    own_state: Callable[[DeletionContext, Deletion], ReachingTable] | None = None
    """Returns what the table itself reaches, where that is not what one Iceberg metadata file reaches: a table of
    another format, or of a catalog with branches."""

    is_branched: bool = False
    """Whether the table's metadata files form a tree, as in a catalog with branches. Then a later file may belong to a
    reference that is gone, and says nothing about the catalog's age."""

    holds: Callable[[], Sequence[Hold]] | None = None
    """Returns the table's active holds, where they are not simply those under its uuid."""

    layout: Callable[[pa.Array], NDArray[np.bool_]] | None = None
    """Returns which paths are where the table's writers put files, if its format says so; what is elsewhere is no
    orphan."""

    data_folder: str | None = None
    """Where writers put data files, if not in `data` below the table's location."""

    removes_empty_folders: bool = False
    """Whether the table's own options ask that expirations remove the folders of data files that they emptied."""

    cold: ColdTables | None = None
    """Set for files of the cold tier. Then `catalog` is the cold catalog, without these tables."""

    missing_copies: Callable[[pa.Array], NDArray[np.bool_]] | None = None
    """Returns which of a plan's files have a required archived copy that is missing from the cold store."""

    archived_files: Callable[[Sequence[str]], Mapping[str, ArchivedFile]] | None = None
    """Returns, for those of a plan's files that are archived, what the live file was then."""

    renew: Callable[[Mapping[str, FileIdentity]], None] | None = None
    """Records that these files were compared with their archived copies, and are equal."""

    archived: Callable[[str], Collection[int]] = lambda table_uuid: ()
    """Returns the snapshots in the cold tables of a table."""

    overtaken: Callable[[PlanRecord, TableMetadata, str | None], TableMetadata | None] = lambda *_: None
    """Returns what a plan's snapshots need of which the table's metadata has none: an open plan still has to archive it
    (another tool expired them), or an undelete has brought them back, with the plan's base in quarantine."""

    @property
    def records(self) -> Stores:
        """The stores that can access `root`."""
        return self.stores if self.root_stores is None else self.root_stores

    @cached_property
    def newer(self) -> Callable[[str], ReachedFiles]:
        """Return what a metadata file of a format version reaches that this release does not know; each read once."""
        return cache(partial(newer_files, self.spark, self.catalog_name, self.rules))

    def entry(self) -> Pointer:
        """Read the table's current catalog entry. Raises NoSuchTable."""
        return self.catalog.entry(self.table) if self.dropped is None else self.dropped.pointer()

    @property
    def last_metadata(self) -> TableMetadata | None:
        """The last known metadata of a dropped table."""
        return None if self.dropped is None else self.dropped.metadata
