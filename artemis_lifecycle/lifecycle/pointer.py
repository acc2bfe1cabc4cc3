"""The live catalog's pointer of a table, for who commits without an engine: read it, and move it to the next metadata
file."""

from __future__ import annotations

from dataclasses import dataclass

from artemis_lifecycle.catalogs.entry import CatalogEntry
from artemis_lifecycle.errors import BadInput, CommitConflict
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata


@dataclass(frozen=True)
class Pointer:
    """Reads and moves the pointers of live tables."""

    resources: Resources

    def current(self, table: str) -> CatalogEntry:
        return self.resources.live_catalog.entry(table)

    def compare_and_swap(self, table: str, expected: str, new: str) -> CatalogEntry:
        catalog, stores = self.resources.live_catalog, self.resources.live_stores
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
