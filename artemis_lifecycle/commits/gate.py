"""The lineage gate in the live catalog's database: enabling, disabling and inspecting it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from artemis_lifecycle.catalogs.gate.installation import (
    OVER_REST,
    GateAttempt,
    GateState,
    attempts,
    forget_attempts,
    gate_state,
    install_gate,
    remove_gate,
)
from artemis_lifecycle.catalogs.gate.rules import (
    GatedRow,
    Rule,
    governed_mode,
    is_installed,
    mode_of,
    request_pass,
    rules_of,
)
from artemis_lifecycle.catalogs.identifier import CatalogEntry, parse, parse_in
from artemis_lifecycle.catalogs.settings import require_uri
from artemis_lifecycle.catalogs.sql import ensure_tables
from artemis_lifecycle.catalogs.triggers import Condition
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.contracts import LineageRequirements, validate_lineage
from artemis_lifecycle.contracts.requirements import rejected
from artemis_lifecycle.errors import BadInput, CommitConflict, LineageRejected, Refused
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.database import connected
from artemis_lifecycle.session.resources import Resources

# --- pointer ----------------------------------------------------------------------------------------------------------
# The live catalog's pointer of a table, for who commits without an engine: read it, and move it to the next metadata
# file.


@dataclass(frozen=True)
class Pointer:
    """Reads and moves the pointers of live tables."""

    resources: Resources

    def current(self, table: str) -> CatalogEntry:
        """Return the table's pointer: its current metadata file, from the catalog itself. Raises NoSuchTable."""
        return self.resources.catalogs.entry(table)

    def compare_and_swap(self, table: str, expected: str, new: str) -> CatalogEntry:
        """Move the table's pointer from the metadata file `expected` to the metadata file `new`, or leave it. Of
        writers with one `expected`, one succeeds. Checked before anything is touched: `new` is readable, of this table,
        and its metadata log ends with `expected`. New snapshots pass the lineage gate, if the database has one.

        Linearizable with `get_current` in a catalog on one Postgres primary. Raises CommitConflict if the table is
        elsewhere; BadInput, UnreadableMetadata for a `new` that cannot follow; LineageRejected; NoSuchTable;
        OperationsUnavailable: not moved; CommitStateUnknown; Refused for a catalog that is not in SQL.
        """
        catalog, stores = self.resources.catalogs.of(table), self.resources.live_stores
        at = catalog.entry(table).metadata_location
        if at != expected:
            raise CommitConflict(
                f"The table is at {at}, not at {expected}",
                table=table,
                path=new,
                untouched="the table",
                hint="build the new metadata from the current file",
            )
        base, following = read_table_metadata(stores, expected), read_table_metadata(stores, new)
        _require_following(table, base, following)
        known = {each.snapshot_id: each for each in base.snapshots}
        # A writer chooses the ids: a known id with another content is a new snapshot.
        added = [each for each in following.snapshots if each != known.get(each.snapshot_id)]
        summaries = [{"snapshot-id": str(each.snapshot_id), **each.summary.whole()} for each in added]
        return catalog.compare_and_swap(table, expected, new, summaries)


def _require_following(table: str, base: TableMetadata, following: TableMetadata) -> None:
    """Raise BadInput unless a writer made `following` from `base`: then no commit in between is lost, and the table
    never goes back to a metadata file whose files may be deleted."""
    log = following.metadata_log
    problem = None
    if following.table_uuid != base.table_uuid:
        problem = f"is of table {following.table_uuid}, not {base.table_uuid}"
    elif not log or log[-1].metadata_file != base.metadata_location:
        problem = f"does not follow {base.metadata_location}: its metadata log ends with another file"
    elif following.last_sequence_number < base.last_sequence_number:
        problem = "has an older sequence number than the current metadata"
    elif following.format_version < base.format_version:
        problem = "has an older format version than the current metadata"
    if problem is not None:
        raise BadInput(
            f"The new metadata file {problem}",
            table=table,
            path=following.metadata_location,
            untouched="the table",
            hint="write it from the table's current metadata file",
        )


@dataclass(frozen=True)
class GateStatus:
    """The gate of the live catalog, against lifecycle.yaml. `enabled` is None if this login may not read that.

    `problems` are broken parts of an enabled gate, and rules that differ from lifecycle.yaml. `rejecting` and
    `reporting` are the entries of `tables` in each mode.
    """

    catalog: str
    enabled: bool | None
    condition: Condition
    problems: tuple[str, ...]
    rejecting: tuple[str, ...]
    reporting: tuple[str, ...]
    enabled_by: str | None = None
    enabled_at: datetime | None = None
    dry_run: bool = False

    @property
    def intact(self) -> bool:
        """Return True if the gate is enabled, whole, and has the rules of lifecycle.yaml."""
        return self.enabled is True and not self.problems


@dataclass(frozen=True)
class Gate:
    """Enables, disables and inspects the gate of the live catalog."""

    resources: Resources

    def enable(self, *, dry_run: bool = False) -> GateStatus:
        """Install the lineage gate in the live catalog's database, or bring it up to date with lifecycle.yaml. From
        then on, tables whose `lineage.mode` is `reject` take only commits that a gated catalog validated.

        `dry_run` changes nothing, and reports the current state. Raises Refused for a catalog that is not in SQL, and
        for a login that does not own its tables; ConfigError for a pattern that Postgres cannot read; Busy.
        """
        config = self.resources.config
        with self._database("enabled") as engine:
            if not dry_run:
                self.resources.require_deployment()
                ensure_tables(engine, upgrade=True)
                install_gate(engine, config.catalogs.live.name, rules_of(config))
            return self._status(engine, dry_run)

    def disable(self, *, dry_run: bool = False) -> GateStatus:
        """Remove the gate's trigger and rules: every engine may commit again. Recorded attempts stay. Raises as
        `enable_gate`."""
        with self._database("disabled") as engine:
            if not dry_run:
                self.resources.require_deployment()
                remove_gate(engine, self.resources.config.catalogs.live.name)
            return self._status(engine, dry_run)

    def status(self) -> GateStatus:
        """Return the state of the gate, and how its rules differ from lifecycle.yaml. Changes nothing. Raises Refused
        for a catalog that is not in SQL."""
        with self._database("inspected") as engine:
            return self._status(engine, dry_run=False)

    def attempts(self, table: str | None = None) -> list[GateAttempt]:
        """Return the commits that a gate refused, or recorded in mode `report`, newest first; of one table or all: in
        the catalog's database, and over REST. Raises Refused for a login that may not read them."""
        live, found = self.resources.config.catalogs.live, list[GateAttempt]()
        if live.type == "sql":
            with self._database("inspected") as engine, engine.connect() as connection:
                found = attempts(connection, live.name, None if table is None else parse(table))
        found += [
            GateAttempt(
                each.at, each.who, OVER_REST, each.table, None, None, (dict(each.summary),), each.problems, each.refused
            )
            for each in self.resources.operations.gate_attempts.of(table, limit=None)
        ]
        return sorted(found, key=lambda each: each.attempted_at, reverse=True)

    def forget_attempts(self, before: datetime, *, dry_run: bool) -> int:
        """Delete what the gate in the catalog's database recorded before this time. Return how many rows. Raises
        Refused for a login that may not."""
        live = self.resources.config.catalogs.live
        if live.type != "sql":
            return 0
        with self._database("trimmed") as engine, engine.connect() as connection:
            return forget_attempts(connection, live.name, before, dry_run=dry_run)

    def require_lineage(self, table: str, summary: Mapping[str, str]) -> None:
        """Raise LineageRejected if a commit with this summary would be refused; an enabled gate records that."""
        config = self.resources.config
        if governed_mode(config, table) != "reject":
            return
        try:
            validate_lineage(summary, LineageRequirements.from_config(config.policy(table).lineage), table=table)
        except LineageRejected:
            self.require_pass(table, summary)
            raise

    def require_pass(self, table: str, summary: Mapping[str, str]) -> None:
        """Raise LineageRejected if an enabled gate would refuse a commit with this summary, and record that: before
        work that is for such a commit."""
        live = self.resources.config.catalogs.of(table)
        if live.type != "sql":
            return
        with self._database("asked", live) as engine, engine.begin() as connection:
            if not is_installed(connection):
                return
            row = GatedRow(live.name, *parse_in(table, live.name).row)
            problems = request_pass(connection, row, [summary], base=None, location=None)
        if problems:
            raise rejected(problems, table)

    def noted(self, table: str, lineage: Mapping[str, str]) -> Mapping[str, str]:
        """Return the lineage that a commit without a snapshot notes in the table: all of it where the gate is enabled
        for the table. Elsewhere nothing, so that the commit changes no property."""
        governed = governed_mode(self.resources.config, table) == "reject"
        return lineage if governed and self.is_enabled_for(table) else {}

    def is_enabled_for(self, table: str) -> bool:
        """Return True if the gate of the table's catalog is enabled and governs the table."""
        live = self.resources.config.catalogs.of(table)
        if live.type != "sql":
            return False
        row = GatedRow(live.name, *parse_in(table, live.name).row)
        with self._database("asked", live) as engine, engine.connect() as connection:
            return is_installed(connection) and mode_of(connection, row) != "none"

    def _status(self, engine: Engine, dry_run: bool) -> GateStatus:
        with engine.connect() as connection:
            state = gate_state(connection, self.resources.config.catalogs.live.name)
        return status_of(self.resources.config, state, dry_run=dry_run)

    @contextmanager
    def _database(self, what: str, live: Catalog | None = None) -> Iterator[Engine]:
        live = live or self.resources.config.catalogs.live
        require_sql(live, what)
        with connected(require_uri(live)) as engine:
            yield engine


def require_sql(live: Catalog, what: str) -> None:
    """Raise Refused for a catalog without a database that could have a gate."""
    if live.type != "sql":
        raise Refused(
            f"The lineage gate of catalog {live.name} cannot be {what}: it is of type {live.type}, and only a catalog "
            "of type sql has a database for it",
            hint="put a gate in front of a REST catalog with: artemis gate serve --upstream URL. Commits to any other "
            "catalog are only watched: see the check lineage_gate (docs/lineage.md)",
        )


def status_of(config: LifecycleConfig, state: GateState, *, dry_run: bool = False) -> GateStatus:
    """Compare the installed gate with lifecycle.yaml."""
    modes = {entry: config.policy(entry).lineage.mode for entry in config.tables}
    problems = tuple(map(str, state.problems))
    if state.enabled and state.rules is not None:
        problems += tuple(_differences(state.rules, rules_of(config)))
    return GateStatus(
        catalog=state.catalog,
        enabled=state.enabled,
        condition=state.condition if state.enabled is not False else "missing",
        problems=problems,
        rejecting=tuple(sorted(entry for entry, mode in modes.items() if mode == "reject")),
        reporting=tuple(sorted(entry for entry, mode in modes.items() if mode == "report")),
        enabled_by=state.enabled_by,
        enabled_at=state.enabled_at,
        dry_run=dry_run,
    )


def _differences(installed: Sequence[Rule], wanted: Sequence[Rule]) -> Iterator[str]:
    found, known = ({(rule.entry, rule.exact): rule for rule in rules} for rules in (installed, wanted))
    for entry in dict.fromkeys(entry for entry, _ in (*known, *found)):
        both = (entry, True) in found or (entry, False) in found, (entry, True) in known or (entry, False) in known
        if both == (False, True):
            yield f"{entry} of lifecycle.yaml has no installed rule"
        elif both == (True, False):
            yield f"the installed rule of {entry} is not in lifecycle.yaml"
        elif any(found.get((entry, exact)) != known.get((entry, exact)) for exact in (True, False)):
            yield f"the installed rule of {entry} differs from lifecycle.yaml"
    if found == known and list(found) != list(known):
        yield "the installed rules are in another order than in lifecycle.yaml"
