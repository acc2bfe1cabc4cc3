"""Tables beside the live catalog's: what each catalog in `catalogs.others` provides, so that plans, holds, protection,
the journal and the scans work on its tables as on all others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from artemis_lifecycle.expiration.commit import ExpirationCommit
from artemis_lifecycle.expiration.plan import ExpirationPlan, Wanted
from artemis_lifecycle.metadata.types import CatalogEntry, TableMetadata
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.reachability.walk import ReachableSet
from artemis_lifecycle.session.live_catalogs import MarkedTables
from artemis_lifecycle.tabular import Shown

# --- table state ------------------------------------------------------------------------------------------------------
# A table at one moment, as every step reads it first.


@dataclass(frozen=True)
class TableState:
    """A table at one moment: its catalog row, and the row's metadata file. For a table of another catalog than the live
    one, `catalog` is that catalog's name."""

    entry: CatalogEntry
    metadata: TableMetadata
    read_at: datetime
    is_dropped: bool = False
    catalog: str | None = None

    @property
    def name(self) -> str:
        """The table's name in every command, plan and partition."""
        identifier = self.entry.identifier
        return identifier if self.catalog is None else f"{self.catalog}:{identifier}"


# --- explanation ------------------------------------------------------------------------------------------------------
# A file's fate.


@dataclass(frozen=True)
class Explanation(Shown):
    """A file's fate. `verdict`: kept, planned, deleted, orphan or unknown. `holders` are snapshots, refs and holds.

    `since` is the commit of the first snapshot that still holds it. `until` is the first instant at which a plan would
    release it if nothing were committed until then (None: while a branch or a tag has it, or no hold has it).
    """

    path: str
    verdict: str
    reasons: tuple[str, ...]
    holders: tuple[str, ...]
    since: datetime | None = None
    until: datetime | None = None


Kind = Literal["iceberg", "nessie", "paimon"]
"""What kind of table a partition is: of the live catalog, of a Nessie server, or of a Paimon warehouse."""

PLANNED: frozenset[Kind] = frozenset({"iceberg", "paimon"})
"""The kinds whose snapshots leave by expiration plans. Of the others, references decide what stays."""

COPIED_BY_TAGS: frozenset[Kind] = frozenset({"paimon"})
"""The kinds whose tags have a copy of their snapshot, which may have expired."""


class OtherTables(Protocol):
    """The tables of one catalog in `catalogs.others`. Names are `<catalog>:<namespace.table>`."""

    @property
    def kind(self) -> Kind: ...

    def tables(self) -> list[str]:
        """Return the name of every table, sorted. Raises OperationsUnavailable or StorageError if the catalog does not
        answer: that never means "no tables"."""

    def state(self, table: str) -> TableState:
        """Return the current table. Raises NoSuchTable, UnreadableMetadata."""

    def context(self, table: str) -> DeletionContext:
        """Return what protection needs to decide about the table's files."""

    def readers(self) -> MarkedTables | None:
        """Return the tables that may read files of other catalogs' tables; None where none can."""

    def reachable_set(self, table: str, now: datetime | None) -> ReachableSet:
        """As `Lifecycle.reachable_set`."""

    def explain(self, table: str, path: str) -> Explanation:
        """As `Lifecycle.explain`."""

    def skip_if_idle(self, table: str) -> bool:
        """As `Lifecycle.skip_if_idle`."""

    def plan_expiration(self, table: str, wanted: Wanted) -> ExpirationPlan:
        """As `Lifecycle.plan_expiration`. Raises NotApplicable where the catalog's own retention decides."""

    def commit_expiration(self, plan: ExpirationPlan, *, dry_run: bool) -> ExpirationCommit:
        """As `Lifecycle.commit_expiration`."""

    def close(self) -> None:
        """Close connections."""
