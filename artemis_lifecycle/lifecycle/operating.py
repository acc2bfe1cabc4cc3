"""For those who operate it: the kill switch, and old records."""

from __future__ import annotations

from dataclasses import dataclass
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps, Step
from artemis_lifecycle.catalogs.deployments import DeploymentRecord, take_over
from artemis_lifecycle.deletion.records import Forgotten, forget
from artemis_lifecycle.operations.decisions import Decision
from artemis_lifecycle.operations.pauses import Pause
from artemis_lifecycle.operations.texts import require_said


@dataclass(frozen=True)
class Operating:
    """Stops work, lets it go on, and forgets what is long over."""

    resources: Resources
    steps: Steps

    def take_over(self, *, who: str, why: str) -> list[DeploymentRecord]:
        """Make the live catalog this deployment's, whoever has it: the other one's steps are refused from now on. Who,
        when and why are kept beside the catalog. Does nothing where it is this one's already.

        The other operations database's holds, open plans, graces and heartbeats protect nothing from then on. Returns
        the record in force. Raises BadInput where nobody, or no reason, is said; Refused for a role without rights.
        """
        require_said(f"catalog {self.resources.live_catalog.name}", who=who, why=why)
        records = self.resources.live_catalog.deployments(self.resources.live_stores)
        # A database that was put back in time goes on from there by this word.
        found = take_over(records, self.resources.deployment, who=who, why=why, anew=self.resources.progress.accept())
        # Somebody else may have taken it over at this moment.
        self.resources.require_deployment()
        return found

    def pause(self, table: str | None = None, *, who: str, why: str) -> Pause:
        """Stop all work on a table, or on every table, wherever it runs: workers notice within seconds, stop between
        two pieces of work, and new ones do not begin. Reading, holding, restoring and undeleting go on."""
        table_uuid = None if table is None else self.steps.table_state(table).metadata.table_uuid
        return self.resources.operations.pauses.begin(who, why, table_uuid, table)

    def resume(self, table: str | None = None, *, who: str, why: str | None = None) -> list[Pause]:
        """End the pause of a table, or (without one) the pause of all; the pauses that this ended. A table's own pause
        outlives that of all. Raises BadInput where nobody is named."""
        table_uuid = None if table is None else self.steps.table_state(table).metadata.table_uuid
        return self.resources.operations.pauses.end(who, table_uuid, why)

    def decisions(self, table: str | None = None, *, about: str | None = None) -> list[Decision]:
        """Who decided what, why and by which account, newest first: of one table or of all; or,
        oldest first, `about` one plan, scan, hold, pause or thaw. Nobody can change or delete what is in it."""
        if about is not None:
            return self.resources.operations.decisions.about(about)
        return self.resources.operations.decisions.of_table(
            None if table is None else self.steps.table_state(table).metadata.table_uuid
        )

    def pauses(self) -> list[Pause]:
        """The pauses that are in force."""
        return self.resources.operations.pauses.in_force()

    def forget_records(self, *, dry_run: bool = False) -> Forgotten:
        """Delete the details of what has ended longer ago than `records.keep`: a deletion's batches and outcomes,
        steps, leases; and listings older than `records.listings`. Plans, scans, decisions and receipts stay.

        Raises StorageError when the store refuses; run again it goes on. A pause of all tables stops it.
        """
        now, keep = self.resources.operations.clock.now(), self.resources.config.records
        return forget(
            self.resources.live_stores,
            self.resources.operations,
            self.resources.root,
            records_before=now - keep.keep,
            listings_before=now - keep.listings,
            dry_run=dry_run,
            check=self._require_no_pause,
        )

    def _require_no_pause(self) -> None:
        for pause in self.resources.operations.pauses.in_force():
            if pause.table_uuid is None:
                raise paused("all tables", str(pause))
