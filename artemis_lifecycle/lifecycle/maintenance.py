"""Maintenance and lineage: the ledger, schemas, health, compaction, and what a table costs."""

from __future__ import annotations

from artemis_lifecycle.catalogs.results import NAMESPACE
from artemis_lifecycle.cold_tier.deep_archive import archived_files
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.expiration.curve import RetentionCurve
from artemis_lifecycle.lifecycle.base import Look
from artemis_lifecycle.lifecycle.history import History
from artemis_lifecycle.lifecycle.reading import Reading
from artemis_lifecycle.lineage.ledger import LEDGER, LedgerUpdate, recorded_schema_uses
from artemis_lifecycle.lineage.ledger import record_lineage as append_lineage
from artemis_lifecycle.lineage.requirements import LineageRequirements
from artemis_lifecycle.lineage.schema_history import SchemaHistory, SchemaUse
from artemis_lifecycle.lineage.schema_history import schema_history as schemas_of
from artemis_lifecycle.maintenance.compaction import CompactedDataFiles, CompactionSettings, compacted_data_files
from artemis_lifecycle.maintenance.costs import ColdHoldings, StorageClasses, TableCosts, table_costs
from artemis_lifecycle.maintenance.health import TableHealth
from artemis_lifecycle.maintenance.health import table_health as health_of
from artemis_lifecycle.maintenance.manifests import CompactedManifests, compacted_manifests
from artemis_lifecycle.metadata.types import TableMetadata

STANDARD = "STANDARD"
"""The storage class of S3 where none is named."""


class Maintenance(History, Reading):
    """Keeps a table readable and its writers on record."""

    def record_lineage(self, table: str) -> LedgerUpdate:
        """Append to the ledger (`<live>.lifecycle.lineage_ledger`) the snapshots that it does not have yet."""
        look = self._look(table)
        requirements = LineageRequirements.from_config(self.config.policy(table).lineage)
        with self._step(look, "lineage") as step:
            update = append_lineage(
                self.spark, self.config.catalogs.live.name, table, look.metadata, requirements, look.read_at
            )
            step.counts = {"snapshots_added": update.added}
        return update

    def schema_history(self, table: str) -> SchemaHistory:
        """The schemas that the table has had, what each changed, and which snapshots used it: those that expired since
        too, where the ledger had recorded them (`record_lineage`)."""
        metadata = self._look(table).metadata
        earlier: tuple[SchemaUse, ...] = ()
        # Looking at it would make it; who only reads makes no table.
        if self._live.exists(f"{NAMESPACE}.{LEDGER}"):
            earlier = recorded_schema_uses(self.spark, self.config.catalogs.live.name, metadata.table_uuid)
        return schemas_of(table, metadata, earlier)

    def table_health(self, table: str) -> TableHealth:
        """Small files, deletes, manifests and metadata of the current snapshot: what makes reading the table slow."""
        return self._health(self._look(table))

    def _health(self, look: Look) -> TableHealth:
        live = self.config.catalogs.live.name
        return health_of(self.spark, self.live_stores, live, look.name, look.metadata, look.read_at)

    def compact_data_files(self, table: str, *, dry_run: bool = False) -> CompactedDataFiles:
        """Rewrite small data files, where the table's health asks for it, within the bandwidth budget."""
        look = self._look(table)
        settings = CompactionSettings(bandwidth_share=self.config.policy(table).budgets.compaction_bandwidth_share)
        with self._step(look, "compaction", dry_run=dry_run) as step:
            done = compacted_data_files(
                self.spark,
                self.config.catalogs.live.name,
                table,
                self._health(look),
                self._worker("compaction"),
                settings,
                dry_run=dry_run,
            )
            step.counts = {"files_rewritten": done.rewritten_files, "files_added": done.added_files}
        return done

    def compact_manifests(self, table: str, *, dry_run: bool = False) -> CompactedManifests:
        """Rewrite many small manifests into few, where their average size asks for it."""
        look = self._look(table)
        with self._step(look, "manifest_compaction", dry_run=dry_run) as step:
            done = compacted_manifests(
                self.spark,
                self.config.catalogs.live.name,
                table,
                self._health(look),
                look.metadata,
                self._worker("manifest-compaction"),
                dry_run=dry_run,
            )
            step.counts = {"manifests_rewritten": done.rewritten_manifests, "manifests_added": done.added_manifests}
        return done

    def costs(self, table: str, curve: RetentionCurve | None = None) -> TableCosts:
        """What the table holds in each tier and for each tag, and what that costs by `prices` of lifecycle.yaml.

        Sizes are what the metadata records. A `curve` of the table that is there already says what its refs hold, so
        that it is not counted again. Changes nothing. Raises UnreadableMetadata.
        """
        metadata, catalogs = self._look(table).metadata, self.config.catalogs
        view, cold = self._index(table, metadata), self._cold_metadata(metadata.table_uuid)
        known = curve or self._curve(table, view, self._instant("now", None), windows=())
        classes = StorageClasses(
            live=catalogs.live.storage_class or STANDARD,
            cold=catalogs.cold.storage_class or STANDARD,
            deep=self.config.deep_archive.storage_class,
        )
        holdings = None if cold is None else self._cold_holdings(table, cold)
        return table_costs(table, view, known.refs, holdings, classes, self.config.prices)

    def _cold_holdings(self, table: str, cold: TableMetadata) -> ColdHoldings:
        deep: dict[str, int] = {}
        for batch in archived_files(self.live_stores, self.operations.deep_moves.of_table(cold.table_uuid)):
            deep |= zip(batch.column("path").to_pylist(), batch.column("size_in_bytes").to_pylist(), strict=True)
        asked = [each for each in self.operations.thaws.list(cold.table_uuid, ended=True) if each.asked_at is not None]
        return ColdHoldings(
            view=self._cold_index(table, cold),
            copies=handoff_ledger(self.live_stores, self.root, cold.table_uuid).copies(),
            deep_snapshots=self.operations.deep_moves.snapshots(cold.table_uuid),
            deep_files=len(deep),
            deep_bytes=sum(deep.values()),
            thawed_files=sum(thaw.files for thaw in asked),
        )
