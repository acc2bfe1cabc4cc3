"""Readers of a catalog that stop or delay other tables' deletions, all at once: tables that cannot be read, and logs of
other formats. Belongs here: what doctor and the fleet say of them. Changes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from glob import escape

from artemis_lifecycle.catalogs.identifier import is_addressable
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.results import RESULT_TABLES
from artemis_lifecycle.catalogs.settings import in_one_database
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import NewerFormat, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.protection.other_formats import claims
from artemis_lifecycle.reachability.reached import ReachedFolders
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

_READERS = 8


@dataclass(frozen=True)
class UnreadReaders:
    """`tables` and `folders` have a sentence for each kind of unreadable table, and for each folder with another
    format's log. `lines` is what lifecycle.yaml needs under `catalogs.live` if the tables read no others' files."""

    tables: tuple[str, ...]
    folders: tuple[str, ...]
    lines: str

    @property
    def sentences(self) -> tuple[str, ...]:
        release = f"; if they read no other table's files, set catalogs.live.{self.lines}"
        return (*(f"{each}{release}" for each in self.tables), *self.folders)


def unread_readers(config: LifecycleConfig, catalog: CatalogReader, stores: Stores) -> UnreadReaders:
    """Return the tables that the last deletion or scan by any process could not read, or that cannot be read now, if it
    did not read them; and the folders of other formats that are still there."""
    live, cold, root = config.catalogs.live, config.catalogs.cold, config.operations.root
    reached = ReachedFolders(None, stores, str(root), lambda _: LocationRules({}, {}))
    found, errors = catalog.loadable()
    pointers = {**found, **catalog.beside((cold.name,) if in_one_database(live, cold) else ())}
    never = {name: "the catalog has no metadata file for it" for name in catalog.tables() if name not in found}
    never |= {name: error.what for name, error in errors.items()}
    problems, newest, unseen = reached.problems(), dict[str, str](), list[str]()
    for name, pointer in pointers.items():
        if name in problems:
            (newest if reached.knows(name, pointer) else never)[name] = problems[name]
        elif not reached.knows(name, pointer) and name not in RESULT_TABLES:
            unseen.append(name)

    def read(name: str) -> str | None:
        try:
            read_table_metadata(stores, pointers[name].metadata_location)
        except NewerFormat:
            return None  # Iceberg itself may read it, which needs Spark.
        except (UnreadableMetadata, StorageError) as error:
            return error.what
        return None

    never |= {name: why for name, why in zip(unseen, threaded(read, unseen, _READERS), strict=True) if why is not None}
    kinds = {"never readable: they stop all deletions of other tables": never}
    kinds["of which the newest commits are not readable: other tables' files wait for them"] = newest
    sentences, named = list[str](), list[str]()
    for kind, tables in kinds.items():
        open_ones = sorted(name for name in tables if is_addressable(name) and not live.is_isolated(name))
        named += open_ones
        if open_ones:
            sentences.append(f"tables {kind}: {'; '.join(f'{name} ({tables[name]})' for name in open_ones)}")
    folders = [
        f"{folder}, where {table} has files, has the log of another table format: what it names is kept"
        for table, seen in sorted(reached.formats().items())
        for folder in claims(stores, seen)
    ]
    lines = json.dumps([*live.isolated, *map(escape, sorted(named))], ensure_ascii=False)
    return UnreadReaders(tuple(sentences), tuple(folders), f"isolated: {lines}")
