"""What a Paimon table reaches now, for protection: its snapshots, tags, branches and changelogs are read again before
each piece of a deletion. A tag, a branch or a rollback that came after the plan keeps its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.errors import NoSuchTable, StalePlan, require_uuid
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.paimon.reached import PaimonFiles, Reader
from artemis_lifecycle.paimon.removal import whole_table
from artemis_lifecycle.paimon.table import EARLIEST, LATEST, PaimonTable
from artemis_lifecycle.protection.context import Deletion
from artemis_lifecycle.protection.table_state import CURRENT_METADATA, REACHABLE, hash_texts
from artemis_lifecycle.storage.location import LocationRules, normalize


class PaimonState:
    """A `ReachingTable` of a Paimon warehouse. `current` reads the table."""

    def __init__(self, reader: Reader, deletion: Deletion, current: Callable[[], PaimonTable]) -> None:
        self._reader = reader
        self._deletion = deletion
        self._current = current
        self._known: tuple[PaimonTable, TableMetadata] | None = None
        self._files: PaimonFiles | None = None
        self._needed: set[str] = set()
        self._later: list[tuple[str, NDArray[np.uint64]]] | None = None
        self.other_names: Callable[[pa.Array], Sequence[NDArray[np.uint64]]] = lambda locations: ()
        self.table = deletion.table
        self.table_uuid = deletion.table_uuid
        self.metadata: TableMetadata | None = None

    @property
    def reason(self) -> str:
        return REACHABLE

    @property
    def _rules(self) -> LocationRules:
        return self._reader.rules

    def read(self) -> TableMetadata:
        """Read the table's documents, and what new ones reach. Returns the same object as before if none has changed.

        Raises StalePlan; UnreadableMetadata if anything that the table needs is missing, broken or ambiguous."""
        table = self._checked()
        # Consumers move all the time, and keep no files.
        if self._known is None or list(self._known[0].documents) != list(table.documents):
            table, self._files = whole_table(self._reader, self._checked, table)
            self._known = table, self._files.metadata
        return self._known[1]

    def _checked(self) -> PaimonTable:
        try:
            table = self._current()
        except NoSuchTable as error:
            raise self._gone(f"The warehouse has no table {self.table} any more") from error
        require_uuid(self.table, table.table_uuid, self.table_uuid)
        return table

    def files(self, metadata: TableMetadata) -> PaimonFiles:
        assert self._files is not None and self._files.metadata is metadata
        return self._files

    def reaches(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        assert self.metadata is not None
        return self.files(self.metadata).reaches(hashes)

    def walked(self, metadata: TableMetadata) -> None:
        assert self._known is not None
        self.metadata = metadata
        self._needed = needed_files(self._known[0], self._rules)
        self._later = None

    def refresh(self) -> bool:
        """Read the documents again; whatever changed, all files are then compared again. Manifests that were read stay
        known, so that this costs what the change costs."""
        return self.read() is self.metadata

    @property
    def new(self) -> set[str]:
        return set()

    @property
    def needed(self) -> set[str]:
        """The locations of the documents themselves."""
        return self._needed

    def later(self) -> Sequence[tuple[str, NDArray[np.uint64]]]:
        if self._later is None:
            self._later = [(CURRENT_METADATA, hash_texts(self._needed, self._rules, self.other_names))]
        return self._later

    def _gone(self, what: str) -> StalePlan:
        return StalePlan(
            what,
            table=self.table,
            untouched="all files of the job that were not deleted before",
            hint="find out who changed the warehouse; if the table is gone for good, artemis close "
            f"{self._deletion.job_id}",
        )


def needed_files(table: PaimonTable, rules: LocationRules) -> set[str]:
    """Return the locations of a table's documents and hints, of every branch."""
    paths = [document.path for document in table.documents]
    for branch in table.branches.values():
        paths += (f"{branch.folder}/schema/schema-{schema.schema_id}" for schema in branch.schemas)
        paths += (f"{branch.folder}/consumer/consumer-{name}" for name in branch.consumers)
        paths += (f"{branch.folder}/{kind}/{hint}" for kind in ("snapshot", "changelog") for hint in (EARLIEST, LATEST))
    return {normalize(path, rules) for path in paths}
