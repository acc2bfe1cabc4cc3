"""Reads the catalog itself, never a cache: a table's current pointer; and moves it."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from artemis_lifecycle.catalogs.deployments import (
    DeploymentRecords,
    DeploymentsInFiles,
    DeploymentsInProperties,
    DeploymentsInRows,
    DeploymentsInSql,
    InSeveralPlaces,
    WhereAllowed,
)
from artemis_lifecycle.catalogs.identifier import CatalogEntry as CatalogEntry
from artemis_lifecycle.catalogs.identifier import (
    Identifier,
    dotted,
    is_addressable,
    namespace_of_row,
    namespace_row,
    parse,
    parse_namespace,
)
from artemis_lifecycle.catalogs.policies import CatalogPolicy, applicable_policies
from artemis_lifecycle.catalogs.rest import RestClient
from artemis_lifecycle.catalogs.settings import pyiceberg_properties, require_uri, without_secrets
from artemis_lifecycle.catalogs.sql import (
    ICEBERG_TYPE,
    IS_TABLE,
    POINTER,
    add_namespace,
    can_read_publications,
    compare_and_swap,
    ensure_tables,
    iceberg_namespace_properties,
    iceberg_tables,
    name_taken,
    publications,
    register,
    row_of,
)
from artemis_lifecycle.config import deployment
from artemis_lifecycle.errors import (
    BadInput,
    ConfigError,
    EnvironmentMissing,
    LifecycleError,
    NoSuchTable,
    OperationsUnavailable,
    Refused,
)
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import Purpose, connect
from artemis_lifecycle.operations.roles import refusing
from artemis_lifecycle.operations.tables import if_given, scalars
from artemis_lifecycle.postgres import UNDEFINED_TABLE
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as PyIcebergCatalog

_LISTINGS = 5
_READERS = 8


class CatalogReader:
    """A live or the cold catalog, read again at each call. SQL catalogs are read by SQL, with a separate pool. The keys
    of tables begin with `prefix`: `<catalog>:` for a catalog beside the live one.

    Raises OperationsUnavailable if the catalog does not answer: that never means "no tables".
    """

    def __init__(self, catalog: deployment.Catalog, purpose: Purpose = "lifecycle", prefix: str = "") -> None:
        self.name = catalog.name
        self.prefix = prefix
        self._source: _Sql | _Other = _Sql(catalog, purpose) if catalog.type == "sql" else _Other(catalog)

    def namespaces(self) -> list[str]:
        """Return every namespace, sorted; levels are spelled as in a table's identifier."""
        return sorted(map(dotted, self._source.namespaces()))

    def tables(self) -> list[str]:
        """Return the identifier of every table, sorted; without views."""
        return sorted(f"{self.prefix}{table}" for table in self._source.tables())

    def entry(self, table: str) -> CatalogEntry:
        """Return the table's row. Raises NoSuchTable; BadInput for an invalid identifier, or another spelling than the
        listed one."""
        found = self._found(table)
        if found is None:
            raise NoSuchTable.of(self.name, table)
        return found

    def pointers(self) -> dict[str, CatalogEntry]:
        """Return the row of every table, by identifier: a single statement if the catalog is in SQL. One that it cannot
        load has a `problem`: without it, other deletions would remove what the table reads."""
        found = [replace(each, prefix=self.prefix) for each in self._source.pointers()]
        return {each.identifier: each for each in sorted(found, key=lambda entry: entry.identifier)}

    def beside(
        self, without: Collection[str] = (), table: str | None = None, named: Collection[str] = ()
    ) -> dict[str, CatalogEntry]:
        """Return the rows of other catalogs in the same `iceberg_tables`, by `<catalog>:<namespace.table>`; only one of
        them if `table` has such a name. Of the catalogs in `without`, also this one, only tables that no handoff
        published: they were there before the guard. None of those in `named`. Nothing for a catalog that is not in
        SQL."""
        return self._source.beside(without, table, named)

    def published(self, table: str) -> str | None:
        """Return the metadata file that the newest recorded handoff published for a cold table."""
        return self._source.published(self.name, table) if isinstance(self._source, _Sql) else None

    def others(self) -> list[CatalogEntry]:
        """Return every object that is not a table of Iceberg: views, functions, tables of other formats. Of a SQL
        catalog, those of all catalogs in the same `iceberg_tables`."""
        # Those of sibling catalogs keep their own names.
        found = self._source.others()
        return [replace(each, prefix=self.prefix) if each.catalog == self.name else each for each in found]

    def policies(self, table: str) -> list[CatalogPolicy]:
        """Return the policies that the catalog keeps for the table: of a REST catalog with Polaris' policy API. Raises
        OperationsUnavailable if a REST catalog does not tell; Refused for a policy of another schema."""
        return self._source.policies(parse(table.removeprefix(self.prefix)))

    def exists(self, table: str) -> bool:
        """Raises BadInput as `entry` does."""
        return self._found(table) is not None

    def listed_as(self, identifier: Identifier) -> str | None:
        """Return the spelling under which the catalog lists the table `identifier`; None if it has no such table.

        A SQL catalog joins a namespace's levels with dots: ``db.`x.y`.t`` is the table that it lists as db.x.y.t.
        """
        found = self._source.entry(identifier)
        return None if found is None else f"{self.prefix}{found.name}"

    def create_namespace(self, namespace: str) -> None:
        """Create the namespace if it does not exist. Raises BadInput for an invalid namespace."""
        self._source.create_namespace(parse_namespace(namespace))

    def deployments(self, stores: Stores, table: str = "", *, destructive: bool = False) -> DeploymentRecords:
        """Return the records of the catalog's deployment. `stores` are its warehouse's, which has the records of a
        catalog that is not in SQL. A REST catalog may keep them on each table: a `destructive` step on `table` sets
        them there."""
        name = table.removeprefix(self.prefix)
        return self._source.deployments(stores, parse(name) if name else None, destructive=destructive)

    def compare_and_swap(
        self, table: str, expected_location: str, new_location: str, summaries: Sequence[Mapping[str, str]] = ()
    ) -> CatalogEntry:
        """Point the table to `new_location` if it points to `expected_location`; return its new row. Linearizable, as
        `entry` is, while every connection is to the same primary server.

        `summaries` are those of the new snapshots, for the lineage gate. Raises NoSuchTable; CommitConflict if the
        table points elsewhere; CommitStateUnknown; OperationsUnavailable if the pointer did not move; LineageRejected;
        Refused where the database refuses, and for a catalog that is not in SQL; BadInput.
        """
        name = self.entry(table).name
        swapped = self._source.compare_and_swap(name, expected_location, new_location, summaries)
        return replace(swapped, prefix=self.prefix)

    def require_free(self, name: Identifier) -> None:
        """Raise Refused if a table, a view or anything else has the name; BadInput if its namespace does not exist."""
        kind = self._source.kind_of(name)
        if kind is not None:
            raise name_taken(name, kind)
        if dotted(name.namespace) not in self.namespaces():
            raise BadInput("The catalog has no such namespace", table=str(name), hint="create it, or use another name")

    def register(self, name: Identifier, metadata_location: str, summaries: Sequence[Mapping[str, str]]) -> None:
        """Add a table that is in no catalog. The lineage gate gets `summaries`, those of snapshots that are new under
        the name. Raises Refused if the name is taken, LineageRejected."""
        self._source.register(name, metadata_location, summaries)

    def rest_client(self) -> RestClient:
        """Return the client for the requests of a catalog of type rest."""
        assert isinstance(self._source, _Other)
        return self._source.rest_client()

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _found(self, table: str) -> CatalogEntry | None:
        found = self._source.entry(parse(table.removeprefix(self.prefix)))
        found = None if found is None else replace(found, prefix=self.prefix)
        if found is not None and found.identifier != table:
            # Policies, holds and partitions use the text as a key: two texts of one table would be two tables to them.
            raise BadInput(
                f"Catalog {self.name} lists this table as {found.identifier}",
                table=table,
                hint=f"name it {found.identifier}",
            )
        return found


# Steps ask these many times: SQLAlchemy takes longer to put a statement together than Postgres to answer it.
_OF_CATALOG = sa.select(*POINTER).where(iceberg_tables.c.catalog_name == sa.bindparam("catalog"), IS_TABLE)
_LOADABLE = _OF_CATALOG.where(iceberg_tables.c.metadata_location.is_not(None))
_ENTRY = _OF_CATALOG.where(
    iceberg_tables.c.table_namespace == sa.bindparam("namespace"), iceberg_tables.c.table_name == sa.bindparam("table")
)
_OTHERS = sa.select(*POINTER, ICEBERG_TYPE.label("kind")).where(
    sa.not_(IS_TABLE), iceberg_tables.c.metadata_location != ""
)
# Compared separately: any of the three names may contain the separators.
_AS_ROW = iceberg_tables.c.table_namespace + "." + iceberg_tables.c.table_name
_NAME = iceberg_tables.c.catalog_name + ":" + _AS_ROW
_BESIDE = (
    sa.select(*POINTER, _NAME.label("name"))
    .where(
        iceberg_tables.c.catalog_name.not_in(sa.bindparam("left_out", expanding=True)),
        iceberg_tables.c.metadata_location.is_not(None),
        IS_TABLE,
    )
    .order_by(_NAME)
)
_PUBLISHED = sa.select(publications.c.table_identifier).where(
    publications.c.catalog_name == iceberg_tables.c.catalog_name, publications.c.table_identifier == _AS_ROW
)
_NOT_PUBLISHED = _BESIDE.where(
    iceberg_tables.c.catalog_name.not_in(sa.bindparam("without", expanding=True)) | ~_PUBLISHED.exists()
)


class _Sql:
    """A catalog in SQL, by its rows."""

    def __init__(self, catalog: deployment.Catalog, purpose: Purpose) -> None:
        self._name = catalog.name
        self._engine: sa.Engine = connect(require_uri(catalog), purpose=purpose)
        self._can_read_publications = False

    def _read(self, query: sa.Select[Any], **values: Any) -> Sequence[sa.Row[Any]]:
        """Return the rows; none if the catalog's tables do not exist yet, which no question makes. Raises Refused."""
        allowed = refusing(
            f"Login {self._engine.url.username} may not read catalog {self._name}",
            hint="the owner of its tables says: GRANT SELECT ON iceberg_tables, iceberg_namespace_properties TO "
            f"{self._engine.url.username} (docs/roles.md)",
        )
        with allowed, self._engine.connect() as connection:
            try:
                return connection.execute(query, {"catalog": self._name, **values}).all()
            except ProgrammingError as error:
                if getattr(error.orig, "pgcode", None) != UNDEFINED_TABLE:
                    raise
                return ()

    def namespaces(self) -> list[tuple[str, ...]]:
        rows = iceberg_namespace_properties.c
        found = self._read(
            sa.select(iceberg_tables.c.table_namespace).where(iceberg_tables.c.catalog_name == self._name)
        )
        made = self._read(sa.select(rows.namespace).where(rows.catalog_name == self._name))
        return [namespace_of_row(namespace) for namespace in {row[0] for row in (*found, *made)}]

    def tables(self) -> list[Identifier]:
        return [Identifier.of_row(row.table_namespace, row.table_name) for row in self._read(_OF_CATALOG)]

    def entry(self, identifier: Identifier) -> CatalogEntry | None:
        namespace, table = identifier.row
        row = next(iter(self._read(_ENTRY, namespace=namespace, table=table)), None)
        return None if row is None or row.metadata_location is None else self._entry(row)

    def pointers(self) -> list[CatalogEntry]:
        return [self._entry(row) for row in self._read(_LOADABLE)]

    def beside(self, without: Collection[str], table: str | None, named: Collection[str]) -> dict[str, CatalogEntry]:
        asked: dict[str, Any] = {"left_out": list({self._name, *named}.difference(without)), "without": list(without)}
        one = if_given(_NAME, table)
        found = self._read(_BESIDE.where(*one), **asked)
        if any(row.catalog_name in without for row in found) and self._has_publications():
            found = self._read(_NOT_PUBLISHED.where(*one), **asked)
        return {row.name: self._entry(row) for row in found}

    def published(self, catalog: str, table: str) -> str | None:
        if not self._has_publications():
            return None
        found = sa.select(publications.c.new_location).order_by(publications.c.publication_id.desc()).limit(1)
        found = found.filter_by(catalog_name=catalog, table_identifier=".".join(parse(table).row))
        return next(iter(scalars(self._engine, found)), None)

    def _has_publications(self) -> bool:
        if not self._can_read_publications:
            with self._engine.connect() as connection:
                self._can_read_publications = can_read_publications(connection)
        return self._can_read_publications

    def others(self) -> list[CatalogEntry]:
        return [replace(self._entry(row), type=row.kind) for row in self._read(_OTHERS)]

    def _entry(self, row: sa.Row[Any]) -> CatalogEntry:
        name = Identifier.of_row(row.table_namespace, row.table_name)
        return CatalogEntry(row.catalog_name, name, row.metadata_location, row.previous_metadata_location)

    def policies(self, name: Identifier) -> list[CatalogPolicy]:
        return []

    def create_namespace(self, levels: tuple[str, ...]) -> None:
        ensure_tables(self._engine)
        with around("catalog.create_namespace"), self._engine.begin() as connection:
            add_namespace(connection, self._name, namespace_row(levels))

    def deployments(self, stores: Stores, table: Identifier | None, *, destructive: bool) -> DeploymentRecords:
        rows = WhereAllowed(self._name, DeploymentsInRows(self._engine, self._name))
        return InSeveralPlaces((DeploymentsInSql(self._engine, self._name), rows))

    def compare_and_swap(
        self, name: Identifier, expected: str, new: str, summaries: Sequence[Mapping[str, str]]
    ) -> CatalogEntry:
        return compare_and_swap(self._engine, self._name, name, expected, new, summaries)

    def kind_of(self, name: Identifier) -> str | None:
        query = sa.select(iceberg_tables.c.iceberg_type).where(*row_of(self._name, name))
        return next(((kind or "table").lower() for kind in scalars(self._engine, query)), None)

    def register(self, name: Identifier, metadata_location: str, summaries: Sequence[Mapping[str, str]]) -> None:
        register(self._engine, self._name, name, metadata_location, summaries)

    def close(self) -> None:
        self._engine.dispose()


class _Other:
    """Any other catalog, through pyiceberg."""

    def __init__(self, catalog: deployment.Catalog) -> None:
        self._name = catalog.name
        self._warehouse = catalog.warehouse
        self._sole = catalog.sole_deployment
        self._key = f"{catalog.type} {without_secrets(catalog.uri)}"
        # Servers that do not say which endpoints they have are asked for views, too.
        self._properties = {"view-endpoints-supported": "true", **pyiceberg_properties(catalog)}
        self._seen_views: dict[Identifier, CatalogEntry] = {}
        # pyiceberg's Hive catalog has one Thrift transport, and answers to threads that share it arrive out of order.
        self._loaded = threading.local() if catalog.type == "hive" else SimpleNamespace()
        with self._answering():
            self._catalog()

    def _catalog(self) -> PyIcebergCatalog:
        from pyiceberg.catalog import load_catalog

        found: PyIcebergCatalog | None = getattr(self._loaded, "catalog", None)
        if found is None:
            properties = dict(self._properties)
            if properties["type"] == "rest" and "py-catalog-impl" not in properties:
                del properties["type"]
                properties["py-catalog-impl"] = "artemis_lifecycle.catalogs.pyiceberg_rest.BoundedRestCatalog"
            found = self._loaded.catalog = load_catalog(self._name, **properties)
        return found

    def namespaces(self) -> list[tuple[str, ...]]:
        with self._answering():
            return list(self._all_namespaces())

    def tables(self) -> list[Identifier]:
        with self._answering():
            return [
                Identifier.of(parts)
                for namespace in self._all_namespaces()
                for parts in self._catalog().list_tables(namespace)
            ]

    def entry(self, identifier: Identifier) -> CatalogEntry | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError

        if self._properties["type"] == "rest":
            return self._fetched(identifier, "table") if is_addressable(str(identifier)) else None
        with self._answering():
            try:
                table = self._catalog().load_table(identifier.parts)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            except Exception as error:
                if isinstance(error, ValueError | ValidationError) and not is_addressable(str(identifier)):
                    return None  # pyiceberg does not send a request for it.
                # Its metadata file is of a later format, damaged, gone, or out of reach: the pointer is in its row.
                row = self._row(identifier)
                if row is None or not row.metadata_location:
                    raise
                return row
        log = table.metadata.metadata_log
        previous = log[-1].metadata_file if log else None
        return CatalogEntry(self._name, Identifier.of(table.name()), table.metadata_location, previous)

    def pointers(self) -> list[CatalogEntry]:
        self._seen_views.clear()  # From here on, each view is loaded again.
        listed, found = self.tables(), dict[Identifier, CatalogEntry | None]()
        for number in range(_LISTINGS):
            due = [each for each in listed if found.get(each) is None]
            new = [each for each in due if each not in found]
            with ThreadPoolExecutor(max_workers=_READERS) as readers:
                found |= zip(due, readers.map(self._loaded_entry, due), strict=True)
            if number and all(found[each] is not None for each in new):
                break
            # One that is gone was dropped in the meantime, or has another name by now, perhaps in a namespace that was
            # listed before.
            listed = self.tables()
            if found.keys() >= set(listed):
                break
        else:
            raise OperationsUnavailable(
                f"Tables of catalog {self._name} get other names faster than they are listed",
                untouched="all files",
                hint="run this again",
            )
        # A table that cannot be addressed counts in its own place, which protection knows (`Neighbors`).
        still = [each for each in listed if found[each] is None and is_addressable(str(each))]
        said = f"Catalog {self._name} lists a table that it cannot load"
        unloaded = [CatalogEntry(self._name, each, "", problem=said) for each in still]
        return [*(entry for entry in found.values() if entry is not None), *unloaded]

    def _loaded_entry(self, identifier: Identifier) -> CatalogEntry | None:
        from pyiceberg.exceptions import ValidationError

        try:
            return self.entry(identifier)
        except LifecycleError as error:
            said = error.what
        except Exception as error:
            is_pyicebergs = type(error).__module__.startswith("pyiceberg.")
            if not is_pyicebergs and not isinstance(error, ValueError | ValidationError):
                raise
            said = f"Catalog {self._name} loads no valid metadata: {str(error)[:300]}"
        return CatalogEntry(self._name, identifier, "", problem=said)

    def beside(self, without: Collection[str], table: str | None, named: Collection[str]) -> dict[str, CatalogEntry]:
        return {}

    def others(self) -> list[CatalogEntry]:
        with self._answering():
            found = [each for namespace in self._all_namespaces() for each in self._objects(namespace)]
        return [entry for entry, is_iceberg in found if not is_iceberg]

    def _objects(self, namespace: tuple[str, ...], name: str | None = None) -> list[tuple[CatalogEntry, bool]]:
        """Return what the catalog has besides what pyiceberg lists, and (Hive, Glue) with that, which is marked; of it
        all, only `name` if given."""
        catalog: Any = self._catalog()
        rows: list[_Row] = []
        if self._properties["type"] == "rest":
            return [(each, False) for each in self._views(namespace)]
        if self._properties["type"] == "hive":
            with _client_of(catalog, "_client") as client:
                names = client.get_all_tables(db_name=namespace[-1]) if name is None else [name]
                found = client.get_table_objects_by_name(dbname=namespace[-1], tbl_names=names)
            rows = [_row_of_hive(each) for each in found]
        elif self._properties["type"] == "glue":
            asked = {} if name is None else {"Expression": re.escape(name)}
            for page in catalog.glue.get_paginator("get_tables").paginate(DatabaseName=namespace[-1], **asked):
                rows += map(_row_of_glue, page["TableList"])
        objects, others = [], list[_Row]()
        for row in rows:
            said = row.parameters
            pointers = said.get("metadata_location", ""), said.get("previous_metadata_location")
            entry = CatalogEntry(self._name, Identifier(namespace, row.name), *pointers, row.kind, row.places[0])
            objects.append((entry, said.get("table_type", "").lower() == "iceberg"))
            if not entry.metadata_location and name is None:
                others.append(row)
        with ThreadPoolExecutor(max_workers=_READERS) as readers:
            for row, further in zip(others, readers.map(partial(self._further, namespace), others), strict=True):
                for place in further:
                    part = Identifier(namespace, f"{row.name} ({place})")
                    objects.append((CatalogEntry(self._name, part, "", None, row.kind, place), False))
        return objects

    def _further(self, namespace: tuple[str, ...], row: _Row) -> list[str]:
        """Return the places of a table of another format besides its own: where its serde or a data source reads, and
        the partitions that are somewhere else."""
        places = {*row.places[1:], *(self._partitions(namespace[-1], row.name) if row.is_partitioned else ())}
        own = row.places[0] or ""
        return sorted(each for each in places if each and each != own and not each.startswith(f"{own.rstrip('/')}/"))

    def _partitions(self, database: str, table: str) -> list[str | None]:
        catalog = self._catalog()
        try:
            if self._properties["type"] == "hive":
                with _client_of(catalog, "_client") as client:
                    parts = client.get_partitions(db_name=database, tbl_name=table, max_parts=-1)
                return [each.sd.location for each in parts]
            pages = _client_of(catalog, "glue").get_paginator("get_partitions")
            asked = {"DatabaseName": database, "TableName": table, "ExcludeColumnSchema": True}
            parts = [each for page in pages.paginate(**asked) for each in page["Partitions"]]
            return [each.get("StorageDescriptor", {}).get("Location") for each in parts]
        except Exception as error:
            # By name, as in `_answering`: it was dropped meanwhile.
            if type(error).__name__ not in ("NoSuchObjectException", "EntityNotFoundException"):
                raise
            return []

    def _views(self, namespace: tuple[str, ...]) -> list[CatalogEntry]:
        from pyiceberg.exceptions import NoSuchNamespaceError, RESTError

        try:
            listed = [Identifier.of(parts) for parts in self._catalog().list_views(namespace)]
        except (NoSuchNamespaceError, NotImplementedError, RESTError) as error:
            # Dropped in the meantime; or the server has no such endpoint, which status 405 says, too.
            if isinstance(error, RESTError) and type(error) is not RESTError:
                raise
            return []
        unseen = [each for each in listed if each not in self._seen_views]
        with ThreadPoolExecutor(max_workers=_READERS) as readers:
            found = readers.map(lambda each: self._fetched(each, "view"), unseen)
        self._seen_views |= {entry.name: entry for entry in found if entry is not None}
        return [self._seen_views[each] for each in listed if each in self._seen_views]

    def _fetched(self, name: Identifier, kind: Literal["table", "view"]) -> CatalogEntry | None:
        """Load what pyiceberg's models reject: they know neither later formats nor a view's metadata location."""
        found = self.rest_client().load(name, kind)
        if found is None:
            return None
        said = found.get("metadata") or {}
        log, place = said.get("metadata-log") or (), said.get("location")
        previous = log[-1].get("metadata-file") if log else None
        return CatalogEntry(self._name, name, found.get("metadata-location") or "", previous, kind.upper(), place)

    def rest_client(self) -> RestClient:
        return RestClient(self._catalog(), self._name)

    def _row(self, name: Identifier) -> CatalogEntry | None:
        """Return the row of a table in Hive or Glue, whose metadata pyiceberg cannot read."""
        return next((entry for entry, _ in self._objects(name.namespace, name.name) if entry.name == name), None)

    def policies(self, name: Identifier) -> list[CatalogPolicy]:
        if self._properties["type"] != "rest":
            return []
        with self._answering():
            return applicable_policies(self._catalog(), _client_of(self._catalog(), "_session"), name)

    def create_namespace(self, levels: tuple[str, ...]) -> None:
        with self._answering(), around("catalog.create_namespace"):
            self._catalog().create_namespace_if_not_exists(levels)

    def deployments(self, stores: Stores, table: Identifier | None, *, destructive: bool) -> DeploymentRecords:
        place = self._catalog(), self._name, self._sole, self._answering
        if self._properties["type"] == "rest":
            return DeploymentsInProperties(*place, table, destructive=destructive)
        if self._warehouse is None:
            raise ConfigError(
                f"Catalog {self._name} has no warehouse, in which the record of its deployment is stored",
                hint="set its warehouse in lifecycle.yaml",
            )
        files = DeploymentsInFiles(stores, self._warehouse, self._name, self._key)
        return InSeveralPlaces((files, WhereAllowed(self._name, DeploymentsInProperties(*place, beside=True))))

    def compare_and_swap(
        self, name: Identifier, expected: str, new: str, summaries: Sequence[Mapping[str, str]]
    ) -> CatalogEntry:
        raise Refused(
            f"Catalog {self._name} is not in SQL: it writes metadata files and moves its pointers itself",
            table=str(name),
            untouched="the table",
            hint="commit through its own client, or with Lifecycle.append",
        )

    def kind_of(self, name: Identifier) -> str | None:
        with self._answering():
            if self._catalog().table_exists(name.parts):
                return "table"
            try:
                return "view" if self._catalog().view_exists(name.parts) else None
            except NotImplementedError:
                return None

    def register(self, name: Identifier, metadata_location: str, summaries: Sequence[Mapping[str, str]]) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        with self._answering(), around("catalog.register"):
            try:
                self._catalog().register_table(name.parts, metadata_location)
            except TableAlreadyExistsError as error:
                raise name_taken(name) from error

    def close(self) -> None:
        self._catalog().close()

    def _all_namespaces(self, parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for namespace in self._catalog().list_namespaces(parent):
            if self._properties["type"] in ("glue", "hive"):
                # Their databases have one level each; pyiceberg splits a name with dots.
                namespace = (".".join(namespace),)
            yield namespace
            if len(namespace) > len(parent):
                yield from self._all_namespaces(namespace)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        from pyiceberg.exceptions import NotInstalledError, RESTError

        try:
            yield
        except NotInstalledError as error:
            raise EnvironmentMissing(
                f"Catalog {self._name} needs a package that is not installed: {error}",
                hint=f"pip install 'pyiceberg[{self._properties['type']}]'",
            ) from error
        except Exception as error:
            # By name: neither Thrift nor botocore is loaded, or installed, for a catalog that does not need it.
            clients = {kind.__module__.partition(".")[0] for kind in type(error).__mro__} & {"thrift", "botocore"}
            if not clients and not isinstance(error, OSError | RESTError):
                raise
            # A REST server's answer may repeat the request.
            said = f": {' '.join(str(error).split())[:300]}" if clients else ""
            raise OperationsUnavailable(
                f"Catalog {self._name} does not answer: {type(error).__name__}{said}",
                hint="check that it runs, and that its address and credentials in lifecycle.yaml are correct",
            ) from error


class _Row(NamedTuple):
    """A table or view of Hive or Glue; the first of its `places` is its own location."""

    name: str
    kind: str
    parameters: Mapping[str, str]
    places: tuple[str | None, ...]
    is_partitioned: bool


_PATHS = ("path", "location")
"""Where Spark keeps the place of a data source table, which Hive may not read: its own location is a placeholder."""


def _row_of_hive(table: Any) -> _Row:
    said, place = table.parameters or {}, table.sd and table.sd.location
    serde = (table.sd and table.sd.serdeInfo and table.sd.serdeInfo.parameters) or {}
    further = (of.get(each) for of in (serde, said) for each in _PATHS)
    return _Row(table.tableName, table.tableType or "OBJECT", said, (place, *further), bool(table.partitionKeys))


def _row_of_glue(table: Mapping[str, Any]) -> _Row:
    said, stored = table.get("Parameters", {}), table.get("StorageDescriptor", {})
    serde = stored.get("SerdeInfo", {}).get("Parameters", {})
    further = (of.get(each) for of in (serde, said) for each in _PATHS)
    places = (stored.get("Location"), *further)
    return _Row(table["Name"], table.get("TableType", "OBJECT"), said, places, bool(table.get("PartitionKeys")))


def _client_of(catalog: Any, attribute: str) -> Any:
    # pyiceberg has no public way to what it does not read itself.
    return getattr(catalog, attribute)
