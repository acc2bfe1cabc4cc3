"""Several live catalogs in one deployment: which one has a table, and what reads files in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from threading import Lock, Thread
from types import MappingProxyType
from typing import Protocol, TypeVar

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.identifier import UNANSWERED, CatalogEntry, Identifier
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import in_one_database
from artemis_lifecycle.catalogs.siblings import CatalogsOfDatabase
from artemis_lifecycle.config.deployment import Catalogs
from artemis_lifecycle.errors import ConfigError, LifecycleError, OperationsUnavailable
from artemis_lifecycle.operations.known_tables import KnownTable, beside_catalog
from artemis_lifecycle.protection.context import TablesOfCatalog
from artemis_lifecycle.protection.neighbors import LastKnown
from artemis_lifecycle.reachability.reached import Pointer
from artemis_lifecycle.storage.instants import elapsed

_log = escaping.logger(__name__)

T = TypeVar("T")
C = TypeVar("C", CatalogReader, TablesOfCatalog)

# --- answers ----------------------------------------------------------------------------------------------------------
# Questions to catalogs that may hang: all are asked at once, and one that does not answer in time holds up no other.
# Without this, a server that accepts connections and then says nothing ends each tick of a sensor, and with it the work
# on every other catalog's tables.

ANSWERS_WITHIN = 15.0
"""Seconds for which all catalogs together are awaited. Dagster ends a tick of a sensor after 60."""


def ask_all(questions: Mapping[str, Callable[[], T]], within: float | None = None) -> dict[str, T | LifecycleError]:
    """Return what each question returns or raises, by its name; OperationsUnavailable for one without an answer in
    time. Raises what is not a LifecycleError."""
    found: dict[str, T | LifecycleError] = {}
    unexpected: list[BaseException] = []

    def ask(name: str, question: Callable[[], T]) -> None:
        try:
            found[name] = question()
        except LifecycleError as error:
            found[name] = error
        except BaseException as error:  # Raised again by the caller's thread.
            unexpected.append(error)

    # Daemons: a process does not wait at its end for a server that hangs.
    threads = [Thread(target=ask, args=each, daemon=True) for each in questions.items()]
    for thread in threads:
        thread.start()
    seconds = ANSWERS_WITHIN if within is None else within
    until = elapsed() + seconds
    for thread in threads:
        thread.join(max(0.0, until - elapsed()))
    if unexpected:
        raise unexpected[0]
    return {name: found[name] if name in found else _late(name, seconds) for name in questions}


def _late(name: str, seconds: float) -> OperationsUnavailable:
    return OperationsUnavailable(
        f"Catalog {name} does not answer within {seconds:g} s",
        untouched="its tables",
        hint="check its server, and the way to it",
    )


# --- live catalogs ----------------------------------------------------------------------------------------------------

_SURVEY_WITHIN = 120.0
"""Seconds for which a deletion waits for the readers of other catalogs. One with many tables needs more than a question
of a sensor may take."""
_SILENT_FOR, _HANGS = 600.0, 10.0
"""Seconds for which a process does not ask a catalog again, and those after which a question counts as hung."""


def require_own_keys(catalogs: Catalogs, live: Iterable[str]) -> None:
    """Raise ConfigError if a table of `catalogs.live` has a key of another catalog's table."""
    beside = {*catalogs.named, *catalogs.others}
    both = next((key for key in live if ":" in key and key.partition(":")[0] in beside), None)
    if both is not None:
        raise ConfigError(
            f"Catalog {catalogs.live.name} has a table whose name begins like those of another catalog in "
            "lifecycle.yaml",
            table=both,
            untouched="everything",
            hint="give that catalog another name in lifecycle.yaml",
        )


def _asked_of(of: Callable[[str], C], name: str, ask: Callable[[C], T]) -> T:
    return ask(of(name))


def readers_in(catalogs: Catalogs, catalog: CatalogReader) -> tuple[dict[str, CatalogEntry], dict[str, str]]:
    """Return the rows of all tables of a live catalog and beside it in its database, by name, and the tables that it
    lists without a row, with a reason. Raises OperationsUnavailable, Refused."""
    cold, live = catalogs.cold, catalogs.named_as(catalog.name)
    pointers = catalog.pointers()
    named = [each.name for each in catalogs.iceberg if in_one_database(each, live)]
    shares_cold = cold.uri is not None and in_one_database(live, cold)
    never = {name: "the catalog has no metadata file for it" for name in catalog.tables() if name not in pointers}
    return {**pointers, **catalog.beside((cold.name,) if shares_cold else (), named=named)}, never


class LiveCatalogs:
    """Every live catalog by name, opened at first use. A table's key leads to its catalog."""

    def __init__(self, catalogs: Catalogs) -> None:
        self._catalogs = catalogs
        self._opened: dict[str, CatalogReader] = {}
        self._opening = {each.name: Lock() for each in catalogs.iceberg}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all live catalogs, that of `catalogs.live` first."""
        return tuple(self._opening)

    def reader(self, name: str) -> CatalogReader:
        """Return the catalog of that name. Raises OperationsUnavailable."""
        with self._opening[name]:
            if name not in self._opened:
                catalog = self._catalogs.named_as(name)
                self._opened[name] = CatalogReader(catalog, prefix=self._catalogs.prefix(catalog))
            return self._opened[name]

    def of(self, table: str) -> CatalogReader:
        """Return the catalog that has the table, by its key. Raises OperationsUnavailable."""
        return self.reader(self._catalogs.of(table).name)

    def entry(self, table: str) -> CatalogEntry:
        """As `CatalogReader.entry`."""
        return self.of(table).entry(table)

    def answering(
        self, ask: Callable[[CatalogReader], T], within: float | None = None
    ) -> tuple[dict[str, T], dict[str, LifecycleError]]:
        """Ask all catalogs. Return the answers, and the errors of named ones that do not answer in time, by name.
        Raises the error of `catalogs.live`."""
        live, *named = self.names
        found, errors = {live: ask(self.reader(live))}, dict[str, LifecycleError]()
        questions = {name: partial(_asked_of, self.reader, name, ask) for name in named}
        for name, answer in ask_all(questions, within).items():
            if isinstance(answer, LifecycleError):
                errors[name] = answer
            else:
                found[name] = answer
        return found, errors

    def pointers(self) -> tuple[dict[str, CatalogEntry], list[str]]:
        """Return the row of every table that a catalog can load, by key; and the keys of the others, `<catalog>:*` for
        all of a catalog that does not answer."""
        found, errors = self.answering(CatalogReader.pointers)
        require_own_keys(self._catalogs, found[self._catalogs.live.name])
        rows = {key: entry for rows in found.values() for key, entry in rows.items()}
        loaded = {key: entry for key, entry in rows.items() if entry.problem is None}
        return loaded, [*(f"{name}:*" for name in errors), *(rows.keys() - loaded)]

    def close(self) -> None:
        """Close what was opened."""
        for reader in self._opened.values():
            reader.close()


class MarkedTables(TablesOfCatalog, Protocol):
    """The tables of a catalog with references."""

    def observed(self) -> Mapping[str, Pointer]:
        """Return the tables as of the last answer of the server. Raises OperationsUnavailable if there was none."""


class AllReaders:
    """Every table and object that may read files of a table of catalog `own`: those of all live catalogs, of their
    databases, and of the catalogs in `marked`. Implements `TablesOfCatalog`.

    `own` must answer. Of another catalog that does not, whichever question it was, the last observed tables count, and
    each of its roots as a place that nobody can look into (`UNANSWERED`): a deletion there waits. With `strict`, all
    must answer. A table that its catalog lists and cannot load makes no catalog silent: its entry says so.
    """

    def __init__(
        self,
        own: str,
        catalogs: Catalogs,
        around: Callable[[str], TablesOfCatalog],
        known: Callable[[str], list[KnownTable]],
        now: Callable[[], datetime],
        *,
        marked: Mapping[str, MarkedTables] = MappingProxyType({}),
        strict: bool = False,
    ) -> None:
        self._own = own
        self._catalogs = catalogs
        self._around: Callable[[str], TablesOfCatalog] = lambda name: marked[name] if name in marked else around(name)
        self._known = known
        self._now = now
        self._marked = marked
        self._strict = strict
        self._silent: dict[str, float] = {}
        self._seen: dict[str, tuple[datetime, Mapping[str, Pointer]]] = {}

    def tables(self) -> list[str]:
        """Return every name, sorted; of a catalog that does not answer, also those of its roots."""
        asked = self._asked(lambda around: around.tables())
        found = {name: list(self._last_known(name)) if each is None else each for name, each in asked.items()}
        require_own_keys(self._catalogs, found[self._catalogs.live.name])
        return sorted(table for tables in found.values() for table in tables)

    def entry(self, table: str) -> Pointer:
        """Return the table's row, or a root of `tables`. Raises NoSuchTable; OperationsUnavailable."""
        for each in self._catalogs.iceberg:
            if table.startswith(f"{UNANSWERED} ") and table in self._roots(each.name):
                return self._roots(each.name)[table]
        name = self._catalogs.of(table).name
        beside = table.partition(":")[0].partition("+")
        if beside[1] and beside[0] in {each.name for each in self._catalogs.iceberg}:
            name = beside[0]
        elif table.partition(":")[0] in self._marked:
            name = table.partition(":")[0]
        if name == self._own:
            return self._around(name).entry(table)
        answer = ask_all({name: lambda: self._around(name).entry(table)}, _SURVEY_WITHIN)[name]
        if isinstance(answer, LifecycleError):
            raise answer
        return answer

    def pointers(self) -> Mapping[str, Pointer]:
        """Return the row of every table by name; of a catalog that does not answer, the last known ones (`LastKnown`)
        and its roots."""
        began, asked = self._now(), self._asked(lambda around: around.pointers())
        self._seen |= {name: (began, each) for name, each in asked.items() if each is not None}
        found = {name: self._last_known(name) if each is None else each for name, each in asked.items()}
        require_own_keys(self._catalogs, found[self._catalogs.live.name])
        return {table: pointer for pointers in found.values() for table, pointer in pointers.items()}

    def others(self) -> list[CatalogEntry]:
        """Return every object that is not a table, and the roots of catalogs that do not answer."""
        asked = self._asked(lambda around: around.others())
        found = [self._roots(name).values() if each is None else each for name, each in asked.items()]
        return [entry for entries in found for entry in entries]

    def _asked(self, ask: Callable[[TablesOfCatalog], T]) -> dict[str, T | None]:
        """Return the answer of each catalog; None for a silent one."""
        names = [*(each.name for each in self._catalogs.iceberg), *self._marked]
        found: dict[str, T | None] = {name: ask(self._around(name)) for name in names if name == self._own}
        others, now = [name for name in names if name != self._own], elapsed()
        due = [name for name in others if self._silent.get(name, now) <= now]
        asked = {name: partial(_asked_of, self._around, name, ask) for name in due}
        answers, hung = ask_all(asked, _SURVEY_WITHIN), elapsed() - now > _HANGS
        for name in others:
            answer = answers.get(name)
            is_silent = isinstance(answer, OperationsUnavailable)
            if isinstance(answer, LifecycleError) and (self._strict or not is_silent):
                raise answer
            if name not in answers or is_silent:
                if isinstance(answer, LifecycleError):
                    _log.warning("What catalog %s reads is currently unknown: %s", name, answer)
                    # No root of a marked catalog makes a deletion wait, so it is asked again each time.
                    if hung and name not in self._marked:
                        self._silent[name] = elapsed() + _SILENT_FOR
                found[name] = None
            else:
                self._silent.pop(name, None)
                found[name] = answer  # type: ignore[assignment]
        return found

    def _last_known(self, name: str) -> Mapping[str, Pointer]:
        if name in self._marked:
            observed = self._marked[name].observed()
            return {table: LastKnown(each.metadata_location) for table, each in observed.items()}
        known = [*self._known(name), *self._known(beside_catalog(name))]
        present = [each for each in known if each.missing_since is None]
        # What this object saw counts until a step records what it saw later; a table may have come since either.
        at, seen = self._seen.get(name, (datetime.min.replace(tzinfo=UTC), {}))
        later = {each.table: each for each in present if each.last_seen > at or each.table not in seen}
        last = {
            table: LastKnown(each.metadata_location, each.previous_metadata_location, each.problem)
            for table, each in seen.items()
        }
        last |= {table: LastKnown(each.metadata_location) for table, each in later.items()}
        return {**last, **self._roots(name)}

    def _roots(self, name: str) -> dict[str, CatalogEntry]:
        places = self._catalogs.places(name)
        located: list[str | None] = [root for root in places if ":/" in root or root.startswith("/")]
        roots = {Identifier(("root",), str(number)): root for number, root in enumerate(located or [None])}
        said = f"Catalog {name} does not answer"
        entries = [CatalogEntry(name, each, "", None, UNANSWERED, root, "", said) for each, root in roots.items()]
        return {f"{UNANSWERED} {name}:{each.identifier}": each for each in entries}


def catalogs_of_database(
    catalogs: Catalogs, reader: CatalogReader, cold: CatalogReader, confirm: Callable[[], None] = lambda: None
) -> CatalogsOfDatabase:
    """Return a live catalog with those beside it in its database, of which the named ones answer for themselves. Those
    of a database that several live catalogs share are beside the first of them, and those of a cold catalog's own
    database beside `catalogs.live`."""
    name, tier = reader.name, catalogs.cold
    own = catalogs.named_as(name)
    sharing = [each.name for each in catalogs.iceberg if in_one_database(each, own)]
    is_apart = own is catalogs.live and tier.uri is not None
    is_apart = is_apart and not any(in_one_database(each, tier) for each in catalogs.iceberg)
    return CatalogsOfDatabase(
        reader,
        (catalogs.cold.name,) if in_one_database(own, catalogs.cold) else (),
        confirm,
        named=[each for each in sharing if each != name],
        keys=(*catalogs.named, *catalogs.others),
        has_siblings=sharing[:1] in ([], [name]),
        cold=cold if is_apart else None,
    )
