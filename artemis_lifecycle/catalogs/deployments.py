"""Ownership of a catalog: the record, next to the catalog's own rows, of the only deployment that works on it.

Two deployments with separate operations databases do not see each other's holds, heartbeats, pauses and plans. The
record is where both see it, whichever way each takes to the catalog: for Iceberg's catalogs in the properties of this
project's own namespace or, if a REST server keeps none, of each table. A SQL catalog has it also, and first, in its
database (schema `artemis_live`), Hive and Glue in the warehouse (`<warehouse>/.artemis-lifecycle/<catalog>.json`), and
catalogs in `catalogs.others` there alone. The newest record of each place counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DataError, InternalError, ProgrammingError

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.identifier import NAMESPACE, Identifier
from artemis_lifecycle.catalogs.rest import RestClient, new_marker
from artemis_lifecycle.catalogs.sql import add_namespace, iceberg_namespace_properties
from artemis_lifecycle.config.deployment import OtherCatalog, SoleDeployment
from artemis_lifecycle.errors import ExistingFile, OperationsUnavailable, OtherDeployment, Refused, UnreadableMetadata
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import Deployment
from artemis_lifecycle.operations.locks import starters_lock
from artemis_lifecycle.operations.roles import INGEST, LIFECYCLE, refusing, role_statements
from artemis_lifecycle.postgres import UNDEFINED_TABLE
from artemis_lifecycle.storage.bounded import bounded_json
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as PyIcebergCatalog

FOLDER = ".artemis-lifecycle"
"""The folder in the warehouse of a catalog that is neither in SQL nor behind REST. Hidden, so that no scan takes it for
a table's."""

_TABLE = "artemis_live.deployments"
_STATEMENTS = (
    "CREATE SCHEMA IF NOT EXISTS artemis_live",
    f"CREATE TABLE IF NOT EXISTS {_TABLE} (record_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
    "catalog_name TEXT NOT NULL, operations_id TEXT NOT NULL, server TEXT, place TEXT NOT NULL, address TEXT NOT NULL, "
    "root TEXT NOT NULL, who TEXT NOT NULL CHECK (btrim(who) <> ''), why TEXT NOT NULL CHECK (btrim(why) <> ''), "
    "recorded_by TEXT NOT NULL DEFAULT session_user, recorded_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp())",
    f"CREATE INDEX IF NOT EXISTS deployments_of_a_catalog ON {_TABLE} (catalog_name, record_id)",
    *role_statements(
        {
            LIFECYCLE: ("USAGE ON SCHEMA artemis_live", f"SELECT, INSERT ON TABLE {_TABLE}"),
            # A heartbeat in another operations database protects nothing, so a writer must see who owns the catalog.
            INGEST: ("USAGE ON SCHEMA artemis_live", f"SELECT ON TABLE {_TABLE}"),
        }
    ),
)
_log = escaping.logger(__name__)


@dataclass(frozen=True)
class DeploymentRecord:
    """A catalog's deployment since `recorded_at`, who recorded it and why."""

    catalog: str
    deployment: Deployment
    who: str
    why: str
    recorded_at: datetime


class DeploymentRecords(Protocol):
    """The records of one live catalog."""

    def newest(self) -> list[DeploymentRecord]:
        """Return the active records: none before the first use; one; or, for a catalog with several names, one for each
        name."""
        ...

    def add(self, deployment: Deployment, who: str, why: str, *, first: bool) -> None:
        """Record that the catalog belongs to the deployment from now on. `first`: only if there is no record yet."""
        ...


@dataclass(frozen=True)
class InSeveralPlaces:
    """The records of a catalog to which several ways lead, in a place for each, where another deployment would look."""

    places: tuple[DeploymentRecords, ...]

    def newest(self) -> list[DeploymentRecord]:
        found = [record for place in reversed(self.places) for record in reversed(place.newest())]
        return list({(each.catalog, each.deployment): each for each in found}.values())[::-1]

    def add(self, deployment: Deployment, who: str, why: str, *, first: bool) -> None:
        for place in self.places:
            place.add(deployment, who, why, first=first)


def places_of(records: DeploymentRecords) -> tuple[DeploymentRecords, ...]:
    return records.places if isinstance(records, InSeveralPlaces) else (records,)


@dataclass(frozen=True)
class WhereAllowed:
    """A further place, which may not keep the record, or not for this login: then the first place alone has it."""

    name: str
    records: DeploymentRecords

    def newest(self) -> list[DeploymentRecord]:
        return list(self._allowed("read", self.records.newest) or ())

    def add(self, deployment: Deployment, who: str, why: str, *, first: bool) -> None:
        self._allowed("set", lambda: self.records.add(deployment, who, why, first=first))

    def _allowed(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (ProgrammingError, DataError, InternalError, OperationsUnavailable, NotImplementedError) as error:
            cause = getattr(error, "orig", None) or error.__cause__
            code = str((getattr(cause, "response", None) or {}).get("Error", {}).get("Code", ""))
            refused = code.startswith(("AccessDenied", "InvalidInput", "OperationNotSupported", "Unauthorized"))
            answered = refused or type(cause).__module__.startswith("hive_metastore")
            if isinstance(error, OperationsUnavailable) and not answered:
                raise
            if what != "read" or getattr(cause, "pgcode", None) != UNDEFINED_TABLE:
                _warn_once(self.name, what, next(iter(str(cause or error).splitlines()), ""))
            return None


@cache
def _warn_once(name: str, what: str, why: str) -> None:
    _log.warning(
        "Catalog %s: property %s of namespace %s cannot be %s, so a deployment that reaches the catalog in another way "
        "(a REST server over it) goes unnoticed: %s",
        *(name, PROPERTY, NAMESPACE, what, why),
    )


def ensure_records(connection: sa.Connection) -> None:
    """Create schema `artemis_live` if necessary, and let no other process add a record until the transaction ends."""
    starters_lock(connection, "artemis-deployments")
    if not _has_table(connection):
        for statement in _STATEMENTS:
            connection.exec_driver_sql(statement)


_NEWEST = sa.text(f"SELECT * FROM {_TABLE} WHERE catalog_name = :catalog ORDER BY record_id DESC LIMIT 1")


class DeploymentsInSql:
    """Next to `iceberg_tables`, with the catalog's name as the key, like its rows."""

    def __init__(self, engine: sa.Engine, catalog: str) -> None:
        self._engine = engine
        self._catalog = catalog

    def newest(self) -> list[DeploymentRecord]:
        needed = "USAGE ON SCHEMA artemis_live, SELECT ON artemis_live.deployments"
        with self._allowed("read", needed), self._engine.connect() as connection:
            try:
                return self._newest(connection)
            except ProgrammingError as error:
                if getattr(error.orig, "pgcode", None) != UNDEFINED_TABLE:
                    raise
                return []

    def add(self, deployment: Deployment, who: str, why: str, *, first: bool) -> None:
        values = {**asdict(deployment), "catalog": self._catalog, "who": who, "why": why}
        needed = "CREATE ON DATABASE (once), USAGE ON SCHEMA artemis_live, INSERT ON artemis_live.deployments"
        with self._allowed("write", needed), around("deployments.add"), self._engine.begin() as connection:
            ensure_records(connection)
            if first and self._newest(connection):
                return
            connection.execute(
                sa.text(
                    f"INSERT INTO {_TABLE} (catalog_name, operations_id, server, place, address, root, who, why) "
                    "VALUES (:catalog, :operations_id, :server, :place, :address, :root, :who, :why)"
                ),
                values,
            )

    def _newest(self, connection: sa.Connection) -> list[DeploymentRecord]:
        row = connection.execute(_NEWEST, {"catalog": self._catalog}).first()
        if row is None:
            return []
        found = Deployment(**{field.name: row._mapping[field.name] for field in fields(Deployment)})
        return [DeploymentRecord(self._catalog, found, row.who, row.why, row.recorded_at.astimezone(UTC))]

    def _allowed(self, what: str, needed: str) -> AbstractContextManager[None]:
        return refusing(
            f"Role {self._engine.url.username} cannot {what} the record of which deployment catalog {self._catalog} "
            "belongs to",
            hint=f"GRANT it {needed}; where the table exists, GRANT artemis_lifecycle (artemis_ingest to a login "
            "that only writes tables) is enough (docs/roles.md)",
        )


class DeploymentsInFiles:
    """In the warehouse, one file per record, each written once: `<catalog>.json`, then `<catalog>.2.json` and so on,
    one for each take-over.

    Each configuration chooses the name of such a catalog, so records under other names also count if they are of the
    same catalog (`key`: its type and address).
    """

    def __init__(self, stores: Stores, warehouse: str, catalog: str, key: str) -> None:
        self._stores = stores
        self._folder = f"{warehouse}/{FOLDER}"
        self._catalog = catalog
        self._key = key

    def newest(self) -> list[DeploymentRecord]:
        return [record for _, _, record in self._ours()]

    def add(self, deployment: Deployment, who: str, why: str, *, first: bool) -> None:
        found = {name: number for name, number, _ in self._ours()}
        if first and found:
            return
        for name in found or [self._catalog]:
            number = found.get(name, 0) + 1
            document = {
                "catalog": self._catalog,
                "key": self._key,
                **asdict(deployment),
                "who": who,
                "why": why,
                "recorded_at": datetime.now(UTC).isoformat(),
            }
            path = f"{self._folder}/{name}{f'.{number}' if number > 1 else ''}.json"
            try:
                with around("deployments.add"):
                    self._stores.write(path, json.dumps(document, indent=2).encode())
            except ExistingFile:
                # Another process was faster; its record is read next.
                _log.warning("Catalog %s was recorded for another deployment in the meantime: %s", name, path)

    def _ours(self) -> list[tuple[str, int, DeploymentRecord]]:
        """Return (name, number, record) of the newest record of this catalog under each name."""
        newest: dict[str, tuple[int, str]] = {}
        for file in self._stores.children(f"{self._folder}/")[1]:
            match = re.fullmatch(r"(.+?)(?:\.(\d+))?\.json", file.path.rpartition("/")[2])
            if match is not None:
                newest[match[1]] = max(newest.get(match[1], (0, "")), (int(match[2] or 1), file.path))
        found = []
        for name, (number, path) in sorted(newest.items()):
            key, record = _parsed(path, self._stores.read(path))
            if name == self._catalog or key == self._key:
                found.append((name, number, record))
        return found


def of_other(stores: Stores, name: str, catalog: OtherCatalog) -> InSeveralPlaces:
    """Return the records of a catalog in `catalogs.others`. Configurations may differ in its address; the folders, in
    which files are deleted, they share."""
    places = [place.rstrip("/") for place in catalog.places]
    return InSeveralPlaces(tuple(DeploymentsInFiles(stores, each, name, catalog.type) for each in places))


PROPERTY = "artemis.deployments"
"""The property with the records of a catalog, a JSON list: of the namespace `NAMESPACE`, or of a REST catalog's
table."""

_KEPT, _LONGEST = 20, 1000
"""How many records stay, at most, and the characters that a JDBC catalog's column takes."""
_UNSUPPORTED = (405, 406)
"""The statuses of a server that lacks an endpoint."""


class DeploymentsInProperties:
    """In the properties of this project's namespace of a REST catalog, which each deployment on that catalog sees,
    however it names the catalog's warehouse. Nothing is written into the catalog's store.

    Where the server keeps no properties of namespaces, in those of `table`, on which a `destructive` step sets it, and
    no other. A login that may not set the namespace's gets no record on a table: deployments with that right would not
    look there.

    Glue and Hive have it as a property of a database, which their REST endpoints show, `beside` their first place.

    No request compares properties, so of two deployments that are first at the same time, the later one has the record;
    the other one sees that before its next commit and before each batch of deletions.
    """

    def __init__(
        self,
        catalog: PyIcebergCatalog,
        name: str,
        sole: SoleDeployment | None,
        answering: Callable[[], AbstractContextManager[None]],
        table: Identifier | None = None,
        *,
        destructive: bool = False,
        beside: bool = False,
    ) -> None:
        self._catalog = catalog
        self._beside = beside
        self._client = RestClient(catalog, name)
        self._name = name
        self._sole = sole
        self._answering = answering
        self._table = table
        self._destructive = destructive

    def newest(self) -> list[DeploymentRecord]:
        return (self._records() or self._of_table())[-1:]

    def add(self, deployment: Deployment, who: str, why: str, *, first: bool) -> None:
        from pyiceberg.exceptions import RESTError, ServerError, ServiceUnavailableError

        found = self._records()
        if first and found:
            return
        record = DeploymentRecord(self._name, deployment, who, why, datetime.now(UTC))
        lacks = True
        with around("deployments.add"):
            try:
                with self._answering():
                    self._catalog.create_namespace_if_not_exists(NAMESPACE)
                    self._catalog.update_namespace_properties(NAMESPACE, updates={PROPERTY: _text(found, record)})
                if self._records():
                    return
            except (OperationsUnavailable, RESTError, NotImplementedError, ValueError) as error:
                if self._beside:
                    raise
                cause = error.__cause__ if isinstance(error, OperationsUnavailable) else error
                if isinstance(cause, OSError | ServerError | ServiceUnavailableError | OperationsUnavailable | None):
                    raise
                _log.warning("Catalog %s refuses properties of namespace %s: %s", self._name, NAMESPACE, cause)
                lacks = _has_none(cause)
            if (self._sole is not None and (first or not lacks)) or (lacks and not self._destructive):
                return
            said = self._added_to_table(record) if lacks else "its login may not set them"
        if said:
            raise Refused(
                f"Catalog {self._name} keeps no properties of namespaces, where the record of its deployment stands: "
                f"another deployment, with its own holds and plans, would not be seen ({said})",
                table=None if self._table is None else str(self._table),
                hint=f"let its login set properties of namespace {NAMESPACE} or of the table; or say in the catalog's "
                "sole_deployment, with who and why, that no other deployment works on this catalog",
            )

    def _added_to_table(self, record: DeploymentRecord) -> str:
        """Record it as a property of the table; return why that is not possible."""
        answer = None if self._table is None else self._client.load(self._table)
        if self._table is None or answer is None:
            return "nor is there a table that could have it"
        requirement = {"type": "assert-table-uuid", "uuid": answer["metadata"]["table-uuid"]}
        update = {"action": "set-properties", "updates": {PROPERTY: _text(self._of_table(), record)}}
        done = self._client.commit(self._table, ([requirement], [update]), new_marker())
        return "" if self._of_table() else f"nor does it set one of the table: {done.said or 'it does not keep it'}"

    def _of_table(self) -> list[DeploymentRecord]:
        answer = None if self._table is None else self._client.load(self._table)
        return _listed((answer or {}).get("metadata", {}).get("properties"), f"table {self._table}")

    def _records(self) -> list[DeploymentRecord]:
        from pyiceberg.exceptions import NoSuchNamespaceError, RESTError, ServerError, ServiceUnavailableError

        with self._answering():
            try:
                properties = self._catalog.load_namespace_properties(NAMESPACE)
            except (NoSuchNamespaceError, NotImplementedError):
                return []
            except RESTError as error:
                refused = self._sole is None or isinstance(error, ServerError | ServiceUnavailableError)
                if refused and _status(error) not in _UNSUPPORTED:
                    raise
                return []
        return _listed(properties, f"namespace {NAMESPACE}")


class DeploymentsInRows:
    """In the same property, as rows of a SQL catalog: a REST server over its database shows them."""

    def __init__(self, engine: sa.Engine, catalog: str) -> None:
        self._engine = engine
        self._catalog = catalog
        self._key = {"catalog_name": catalog, "namespace": NAMESPACE, "property_key": PROPERTY}

    def newest(self) -> list[DeploymentRecord]:
        with self._engine.connect() as connection:
            return self._records(connection)[-1:]

    def add(self, deployment: Deployment, who: str, why: str, *, first: bool) -> None:
        with around("deployments.add"), self._engine.begin() as connection:
            starters_lock(connection, "artemis-deployments")
            found = self._records(connection)
            if not (first and found):
                add_namespace(connection, self._catalog, NAMESPACE)
                text = _text(found, DeploymentRecord(self._catalog, deployment, who, why, datetime.now(UTC)))
                row = {**self._key, "property_value": text}
                connection.execute(db.put(iceberg_namespace_properties, row, ["property_value"]))

    def _records(self, connection: sa.Connection) -> list[DeploymentRecord]:
        query = sa.select(iceberg_namespace_properties.c.property_value).filter_by(**self._key)
        return _listed({PROPERTY: connection.execute(query).scalar_one_or_none() or "[]"}, f"namespace {NAMESPACE}")


def _has_none(error: BaseException) -> bool:
    """Return True if a server has no properties of namespaces, whoever asks; False if it refuses them for now, or to
    this login."""
    from pyiceberg.exceptions import BadRequestError

    return isinstance(error, NotImplementedError | BadRequestError | ValueError) or _status(error) in _UNSUPPORTED


def _status(error: BaseException) -> object:
    return getattr(getattr(error.__cause__, "response", None), "status_code", None)


def _text(found: Sequence[DeploymentRecord], record: DeploymentRecord) -> str:
    kept = [asdict(each) for each in (*found, record)[-_KEPT:]]
    while len(text := json.dumps(kept, default=datetime.isoformat)) > _LONGEST and len(kept) > 1:
        del kept[0]
    if len(text) > _LONGEST:
        kept[0]["why"] = record.why[:100]
    return json.dumps(kept, default=datetime.isoformat)


def _listed(properties: Mapping[str, str] | None, of: str) -> list[DeploymentRecord]:
    place = f"{of}, property {PROPERTY}"
    with _reading(place):
        return [_record(each) for each in bounded_json((properties or {}).get(PROPERTY, "[]"), place)]


def _parsed(path: str, content: bytes) -> tuple[str, DeploymentRecord]:
    with _reading(path):
        document = bounded_json(content, path)
        return document["key"], _record({**document, "deployment": document})


def _record(document: Mapping[str, Any]) -> DeploymentRecord:
    deployment = Deployment(**{field.name: document["deployment"][field.name] for field in fields(Deployment)})
    recorded_at = datetime.fromisoformat(document["recorded_at"])
    return DeploymentRecord(document["catalog"], deployment, document["who"], document["why"], recorded_at)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableMetadata(
            f"The record of which deployment the catalog belongs to cannot be read: {type(error).__name__}",
            path=path,
            hint="restore the file, or find out which deployment works on the catalog and remove it",
        ) from error


def require_deployment(
    records: DeploymentRecords,
    catalog: str,
    ours: Deployment,
    *,
    who: str,
    record: bool = True,
    first: Callable[[], None] = lambda: None,
) -> None:
    """Raise OtherDeployment if the catalog belongs to another deployment, by any of its places. At its first use, which
    `first` may refuse, it is assigned to `ours`, and a place that lacks the record gets it, unless `record` is False.

    Raises Refused for a role without rights to the record; UnreadableMetadata, StorageError.
    """
    found = [(place, place.newest()) for place in places_of(records)]
    if not any(newest for _, newest in found):
        first()
    _require_ours(catalog, ours, [each for _, newest in found for each in newest])
    if not record:
        return
    for place, newest in found:
        if not newest:
            place.add(ours, who, "first use of the catalog", first=True)
        elif ours.server is not None and any(each.deployment.server is None for each in newest):
            with suppress(Refused):  # A later step may have the right.
                place.add(ours, who, "its server is known now", first=False)
    if not all(newest for _, newest in found):
        # If two deployments were first at the same time, only one has the record.
        _require_ours(catalog, ours, records.newest())


def _require_ours(catalog: str, ours: Deployment, found: Sequence[DeploymentRecord]) -> None:
    for each in found:
        difference = ours.difference(each.deployment)
        if difference is not None:
            raise OtherDeployment(
                f"Catalog {catalog} belongs to another deployment: operations database {each.deployment.address} "
                f"({each.deployment.operations_id}) with root {each.deployment.root}, recorded at "
                f"{each.recorded_at:%Y-%m-%d %H:%M:%S} UTC by {each.who} ({each.why}). This one works with "
                f"{ours.address} ({ours.operations_id}): {difference}",
                hint="set operations.uri and operations.root to that deployment's. If it no longer works on this "
                "catalog (its holds, plans and heartbeats then count for nothing): artemis take-over --who … --why …",
            )


def take_over(
    records: DeploymentRecords, ours: Deployment, *, who: str, why: str, anew: bool = False
) -> list[DeploymentRecord]:
    """Record that the catalog is `ours` from now on, whoever owned it (`anew`: even if it is already ours). Return the
    active records."""
    found = records.newest()
    if anew or not found or any(ours.difference(each.deployment) is not None for each in found):
        records.add(ours, who, why, first=False)
    return records.newest()


def _has_table(connection: sa.Connection) -> bool:
    # Not to_regclass(): a session may use a cached result from before another one created the table.
    return bool(
        connection.execute(
            sa.text(
                "SELECT count(*) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
                "WHERE nspname = 'artemis_live' AND relname = 'deployments'"
            )
        ).scalar_one()
    )
