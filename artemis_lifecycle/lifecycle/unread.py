"""Which readers of a catalog stop or delay other tables' deletions, all at once: tables that cannot be read, and logs
of other formats in tables' folders. Belongs here: what doctor and the fleet say of them. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from glob import escape

from artemis_lifecycle.catalogs.identifier import is_addressable
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.results import RESULT_TABLES
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.errors import NewerFormat, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import described, read_table_metadata
from artemis_lifecycle.protection.other_formats import OtherFormats
from artemis_lifecycle.reachability.reached import ReachedFolders
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

_READERS = 8


@dataclass(frozen=True)
class UnreadReaders:
    """`never`: tables that were never readable, which stop every deletion of the others, with the reason. `newest`:
    tables of which only the newest commits cannot be read, for which files wait. `isolated`: the patterns that are set.
    `formats`: folders with the log of another format, by table."""

    never: Mapping[str, str]
    newest: Mapping[str, str]
    formats: Mapping[str, Collection[str]]
    isolated: tuple[str, ...]

    @property
    def lines(self) -> str:
        """Return what lifecycle.yaml needs under `catalogs.live`, if these tables read no other table's files."""
        patterns = (*self.isolated, *map(escape, sorted({*self.never, *self.newest})))
        return f"isolated: {json.dumps(patterns, ensure_ascii=False)}"

    @property
    def tables(self) -> tuple[str, ...]:
        """Return a sentence for each kind of unreadable table."""
        kinds = (
            ("never readable: they stop all deletions of other tables", self.never),
            ("not readable as of their newest commits: other tables' files wait for them", self.newest),
        )
        named = ((what, "; ".join(f"{name} ({why})" for name, why in sorted(each.items()))) for what, each in kinds)
        return tuple(f"tables {what}: {names}" for what, names in named if names)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return all that there is to say."""
        release = f"; if they read no other table's files, set catalogs.live.{self.lines}"
        return (*(f"{each}{release}" for each in self.tables), *self.folders)

    @property
    def folders(self) -> tuple[str, ...]:
        """Return a sentence for each folder with another format's log."""
        return tuple(
            f"{folder}, where {table} has files, has the log of another table format: what it names is kept"
            for table, each in sorted(self.formats.items())
            for folder in each
        )


def unread_readers(
    catalog: CatalogReader, live: Catalog, without: Collection[str], stores: Stores, root: str
) -> UnreadReaders:
    """Return the unreadable tables, as of the last deletion or scan by any process, and now for those that it did not
    read; and the folders of other formats that are still there."""
    reached = ReachedFolders(None, stores, root, lambda _: LocationRules({}, {}))
    found, errors = catalog.loadable()
    pointers = {**found, **catalog.beside(without)}
    never = {name: error.what for name, error in errors.items()}
    never |= {name: "it has no metadata file" for name in catalog.tables() if name not in found and name not in errors}
    newest: dict[str, str] = {}
    problems = reached.problems()
    unseen = []
    for name, pointer in pointers.items():
        if reached.knows(name, pointer):
            if name in problems:
                newest[name] = problems[name]
        elif name in problems:
            never[name] = problems[name]
        elif name not in RESULT_TABLES:
            unseen.append(name)
    read = threaded(lambda name: _problem(stores, pointers[name].metadata_location), unseen, _READERS)
    never |= {name: problem for name, problem in zip(unseen, read, strict=True) if problem is not None}

    def counting(found: Mapping[str, str]) -> dict[str, str]:
        return {name: why for name, why in found.items() if is_addressable(name) and not live.is_isolated(name)}

    logs = OtherFormats(stores)
    formats = {table: tuple(logs.claims(folders)) for table, folders in reached.formats().items()}
    return UnreadReaders(
        counting(never),
        counting(newest),
        {table: folders for table, folders in formats.items() if folders},
        live.isolated,
    )


def _problem(stores: Stores, metadata_location: str) -> str | None:
    try:
        read_table_metadata(stores, metadata_location)
    except NewerFormat:
        return None  # Iceberg itself may read it, which needs Spark.
    except (UnreadableMetadata, StorageError) as error:
        try:
            if not described(stores, metadata_location).is_table:
                return None  # A view, whatever the catalog calls it.
        except (UnreadableMetadata, StorageError):
            pass
        return error.what
    return None
