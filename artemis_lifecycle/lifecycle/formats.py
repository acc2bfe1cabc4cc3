"""Tables beside the live catalog's: what each catalog in `catalogs.others` provides, so that plans, holds, protection,
the journal and the scans work on its tables as on all others. Does not belong here: one format's own rules."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Protocol

from artemis_lifecycle.expiration.commit import ExpirationCommit
from artemis_lifecycle.expiration.plan import ExpirationPlan, Wanted
from artemis_lifecycle.lifecycle.explanation import Explanation
from artemis_lifecycle.lifecycle.table_state import TableState
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.reachability.reachable_set import ReachableSet

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
