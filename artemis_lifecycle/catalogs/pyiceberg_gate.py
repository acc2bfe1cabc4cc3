"""pyiceberg's SQL catalog, with the lineage gate of its database.

Load it by property: `py-catalog-impl: artemis_lifecycle.catalogs.pyiceberg_gate.GatedSqlCatalog`. Where the database
has no gate, it is pyiceberg's own SqlCatalog. This is the only module that imports pyiceberg when it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from typing_extensions import override

from artemis_lifecycle.catalogs.gate.rules import GatedRow, is_installed, mode_of, require_pass
from artemis_lifecycle.contracts.summary import OPERATION
from artemis_lifecycle.errors import ConfigError
from artemis_lifecycle.operations.database import connect


class GatedSqlCatalog(SqlCatalog):
    """A SqlCatalog on Postgres whose commits pass the gate before their metadata file is written.

    A refused commit raises LineageRejected. It leaves the data files, manifests and the manifest list that pyiceberg
    wrote before the commit: no metadata refers to them, and an orphan scan finds them when they are old enough.
    """

    def __init__(self, name: str, engine: sa.Engine | None = None, **properties: str) -> None:
        """`engine`: use its connections; None: connect to the property `uri`, as a writer."""
        if engine is None and properties.get("uri", "").startswith("postgresql"):
            engine = connect(properties["uri"], purpose="ingest")
        if engine is None:
            super().__init__(name, **properties)
        else:
            MetastoreCatalog.__init__(self, name, **properties)
            self.engine = engine
            self._init_catalog()

    @override
    def _init_catalog(self) -> None:
        if self.engine.dialect.name != "postgresql":
            raise ConfigError(
                f"Catalog {self.name} is not on Postgres, and has no lineage gate",
                hint="use pyiceberg's own catalog, behind: artemis gate serve",
            )
        super()._init_catalog()

    @override
    def register_table(self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False) -> Table:
        """Register a table all of whose snapshots meet the requirements of `identifier`; in mode `report`, record those
        that do not. Raises LineageRejected."""
        row = self._row(identifier)
        if self._is_governed(row):
            io = load_file_io(self.properties, metadata_location)
            metadata = FromInputFile.table_metadata(io.new_input(metadata_location))
            self._require_pass(row, metadata.snapshots, base=None, location=metadata_location)
        return super().register_table(identifier, metadata_location, overwrite)

    @override
    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        """Rename a table. All its snapshots must meet the requirements of the new name; in mode `report`, those that do
        not are recorded. Raises LineageRejected."""
        target = self._row(to_identifier)
        if self._is_governed(target):
            table = self.load_table(from_identifier)
            location = table.metadata_location
            self._require_pass(target, table.metadata.snapshots, base=location, location=location)
        return super().rename_table(from_identifier, to_identifier)

    @override
    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        # Called by commit_table, which then writes the staged metadata and swaps the pointer.
        staged = super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        base = None if current_table is None else current_table.metadata_location
        new = _new_snapshots(staged.metadata, None if current_table is None else current_table.metadata)
        self._require_pass(self._row(table_identifier), new, base=base, location=staged.metadata_location)
        return staged

    @override
    def _create_table_row(self, namespace: str, table_name: str, metadata_location: str | None) -> dict[str, Any]:
        # Also called by create_table, whose metadata has no snapshot. Register and commit have validated theirs.
        if metadata_location is not None:
            self._require_pass(GatedRow(self.name, namespace, table_name), (), base=None, location=metadata_location)
        return super()._create_table_row(namespace, table_name, metadata_location)

    def _row(self, identifier: str | Identifier) -> GatedRow:
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
        return GatedRow(self.name, namespace, Catalog.table_name_from(identifier))

    def _is_governed(self, row: GatedRow) -> bool:
        with self.engine.connect() as connection:
            return is_installed(connection) and mode_of(connection, row) != "none"

    def _require_pass(self, row: GatedRow, snapshots: Iterable[Snapshot], *, base: str | None, location: str) -> None:
        require_pass(self.engine, row, [_summary(each) for each in snapshots], base=base, location=location)


def _new_snapshots(new: TableMetadata, base: TableMetadata | None) -> list[Snapshot]:
    """Return the snapshots that `base` does not have, or has with another content: a writer chooses the ids."""
    known = {} if base is None else {snapshot.snapshot_id: snapshot for snapshot in base.snapshots}
    return [snapshot for snapshot in new.snapshots if not _are_same(snapshot, known.get(snapshot.snapshot_id))]


def _are_same(snapshot: Snapshot, other: Snapshot | None) -> bool:
    return snapshot is other or (other is not None and _content(snapshot) == _content(other))


def _content(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.manifest_list, snapshot.timestamp_ms, _summary(snapshot)


def _summary(snapshot: Snapshot) -> dict[str, str]:
    found = {"snapshot-id": str(snapshot.snapshot_id)}
    if snapshot.summary is not None:
        found |= snapshot.summary.additional_properties
        found[OPERATION] = snapshot.summary.operation.value
    return found
