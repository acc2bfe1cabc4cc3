"""What a catalog would gain, found out by reading alone: `artemis assess`. Belongs here: the question, and its answer
for each table. Does not belong here: a rule. What expires, what only expired snapshots reach and what may be an orphan
is decided where plans, scans and deletions decide it.

No operations database, embedded stack or cold tier is opened, and nothing is written: manifests are read into an index
in memory. Spark starts for a live inventory alone. Holds and recorded tags are in the operations database, and are not
known here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from numpy.typing import NDArray
from rich.filesize import decimal

from artemis_lifecycle.catalogs.identifier import CatalogEntry, is_addressable
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.results import RESULT_TABLES
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.durations import format_duration
from artemis_lifecycle.config.model import SECRET, hidden
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.names import fits
from artemis_lifecycle.config.policies import Retention
from artemis_lifecycle.errors import BadInput, ConfigError, LifecycleError, NaiveDatetime, NoSuchTable, Refused
from artemis_lifecycle.escaping import html, terminal
from artemis_lifecycle.expiration.plan import refuse_unexpirable
from artemis_lifecycle.fleet.page import document, listing, ranks
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata, kinds_by_name
from artemis_lifecycle.orphans.external_listing import (
    Below,
    Inventory,
    ParquetListing,
    read_inventory,
    read_parquet_listing,
    rows_below,
)
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.live_inventory import LiveInventory, is_live_inventory, read_live_inventory
from artemis_lifecycle.orphans.scan import ScanSettings, cutoffs
from artemis_lifecycle.protection.future import DELTA_LOG, claims, possible_roots
from artemis_lifecycle.protection.identity import Folders
from artemis_lifecycle.protection.neighbors import Neighbor, nested_locations, readable_neighbor, unreadable_neighbor
from artemis_lifecycle.protection.ownership import (
    Known,
    is_root,
    metadata_locations,
    own_locations,
    spelled_locations,
    subject_array,
    twins,
)
from artemis_lifecycle.protection.places import OTHER_TABLE, RECEIPTS, Places
from artemis_lifecycle.protection.protection import ProtectedFiles
from artemis_lifecycle.protection.table_state import CURRENT_METADATA, REACHABLE, hash_texts, metadata_files
from artemis_lifecycle.reachability.files import IndexFiles
from artemis_lifecycle.reachability.index import IndexInMemory, IndexSettings
from artemis_lifecycle.reachability.index.files import deletable
from artemis_lifecycle.reachability.index.lookups import held_files
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.retention.rules import decide, view_of
from artemis_lifecycle.retention.views import few
from artemis_lifecycle.session.contexts import retention_settings
from artemis_lifecycle.session.live_catalogs import readers_in
from artemis_lifecycle.session.policies import EXPIRY, REMOVAL, effective_policy
from artemis_lifecycle.session.resources import Resources, host_now
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.storage.location import LocationRules, among, distinct, hash_column, normalize, parent
from artemis_lifecycle.storage.stores import is_local
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.tabular import Shown, frame_of
from artemis_lifecycle.upkeep.health import table_health
from artemis_lifecycle.upkeep.maintenance import storage_classes

if TYPE_CHECKING:
    import pandas as pd

CANDIDATES = "candidates, not a scan"
"""What the orphans of an assessment are: no heartbeat, hold or open plan was asked, and no store."""

_ANSWER_WITHIN = 300.0
"""Seconds for which catalogs beside `catalogs.live` are awaited: a REST catalog is asked about each table."""

_READERS = 4
"""Tables that are read at the same time from an object store, each with `reachability.threads`."""


@dataclass(frozen=True)
class TableAssessment:
    """One table. Sizes in bytes; None is unknown, and never an estimate.

    `snapshots_past_window` would expire now. `files_freeable` are reached by them and by no snapshot that stays; they
    are 0 if the table may not expire. `files` are all that snapshots reach. `metadata_bytes` are the metadata file and
    all manifest lists and manifests, `manifests` those of the current snapshot. `orphan_files` are candidates, None
    without a listing. `problems` say what puts the table at risk or stops work on it; `error`, why it cannot be read.
    """

    table: str
    format_version: int | None = None
    snapshots: int | None = None
    snapshots_past_window: int | None = None
    files: int | None = None
    bytes: int | None = None
    files_freeable: int | None = None
    bytes_freeable: int | None = None
    orphan_files: int | None = None
    orphan_bytes: int | None = None
    data_files: int | None = None
    small_files: int | None = None
    manifests: int | None = None
    metadata_bytes: int | None = None
    metadata_file_bytes: int | None = None
    cost_per_month: float | None = None
    freeable_per_month: float | None = None
    problems: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Assessment(Shown):
    """What tables would gain, most freeable bytes first. `quick`: only metadata files were read. `listed_at` is when
    the given listing was begun. `window` is that of tables without one of their own. `lifecycle_yaml` is a
    configuration to begin with."""

    at: datetime
    quick: bool
    listed_at: datetime | None
    orphans_are: str
    currency: str
    tables: tuple[TableAssessment, ...]
    lifecycle_yaml: str
    window: timedelta = Retention().window

    def total(self, name: str) -> int | float | None:
        """Return the sum of a figure over the tables where it is known; None if it is known of none."""
        known = [value for table in self.tables if (value := getattr(table, name)) is not None]
        return sum(known) if known else None

    @property
    def sentences(self) -> tuple[str, ...]:
        """What there is to gain, and what the figures leave unsaid."""
        past, all_of = self.total("snapshots_past_window"), self.total("snapshots")
        freeable, stored, money = (self.total(name) for name in ("bytes_freeable", "bytes", "freeable_per_month"))
        window = format_duration(self.window)
        found = [f"{past or 0:,} of {all_of or 0:,} snapshots are past their window, by default {window}"]
        if freeable is not None and stored is not None:
            priced = "" if money is None else f", {money:,.2f} {self.currency} a month"
            found.append(f"Expiration would free {decimal(int(freeable))} of {decimal(int(stored))}{priced}")
        if self.listed_at is not None and (orphans := self.total("orphan_bytes")) is not None:
            listed = f"{self.listed_at:%Y-%m-%d %H:%M} UTC"
            found.append(f"Orphans in the listing of {listed}: {decimal(int(orphans))}; {self.orphans_are}")
        if self.quick:
            found.append("Only metadata files were read: without --quick, manifests tell the rest")
        unread = sum(table.error is not None for table in self.tables)
        return (*found, f"Tables that cannot be read, and count in no figure: {unread:,}") if unread else tuple(found)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per table, with the fields of TableAssessment."""
        return frame_of(TableAssessment, self.tables)

    @cached_property
    def html(self) -> str:
        """One page with plots, without scripts or pictures from elsewhere."""
        figures = {"tables": f"{len(self.tables):,}"}
        figures |= {name: _shown(field, self.total(field)) for field, name in self.columns.items()}
        plots = [_plot(self.tables, field, title) for field, title in _PLOTS.items() if self.total(field)]
        heads = ["table", *self.columns.values(), "at risk, or unreadable"]
        rows = [self._row(table) for table in self.tables]
        begin = f"<h2>lifecycle.yaml to begin with</h2><pre>{escape(self.lifecycle_yaml)}</pre>"
        return document("Assessment", self.at, figures, self.sentences, plots, listing(heads, rows), begin)

    @property
    def columns(self) -> Mapping[str, str]:
        """The figures that are known of any table, with their headings."""
        figures = [each.name for each in fields(TableAssessment) if each.name not in _NO_FIGURES]
        named = {name: name.replace("_", " ").replace("orphan", "orphan candidates:") for name in figures}
        return {
            name: f"{text}, {self.currency}" if name.endswith("per_month") else text
            for name, text in named.items()
            if self.total(name) is not None
        }

    def _row(self, table: TableAssessment) -> str:
        problems = "<br>".join(html(each) for each in problems_of(table))
        values = ((field, getattr(table, field)) for field in self.columns)
        cells = "".join(
            f"<td class='number{' unknown' * (value is None)}' data-key='{-1 if value is None else value}'>"
            f"{_shown(field, value)}</td>"
            for field, value in values
        )
        name = html(table.table)
        bad = " class=bad" * bool(problems)
        return f"<tr{bad}><td data-key='{name}'>{name}</td>{cells}<td data-key='{len(problems)}'>{problems}</td></tr>"


_NO_FIGURES = ("table", "format_version", "problems", "error")
_PLOTS = {
    "bytes_freeable": "Freeable by expiration",
    "orphan_bytes": f"Orphans: {CANDIDATES}",
    "snapshots_past_window": "Snapshots past the window",
    "small_files": "Small files",
    "metadata_file_bytes": "Metadata files",
}
_RANKED = 6


def problems_of(table: TableAssessment) -> list[str]:
    """Return why a table cannot be read, and what puts it at risk."""
    return [*([] if table.error is None else [f"cannot be read: {table.error}"]), *table.problems]


def _shown(field: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    if field.endswith("per_month"):
        return f"{value:,.2f}"
    return decimal(int(value)) if "bytes" in field.split("_") else f"{value:,}"


def _plot(tables: Sequence[TableAssessment], field: str, title: str) -> str:
    known = sorted((each for each in tables if getattr(each, field)), key=lambda each: -getattr(each, field))[:_RANKED]
    values = [getattr(each, field) for each in known]
    return ranks(title, [each.table for each in known], values, partial(_shown, field))


# --- the question -----------------------------------------------------------------------------------------------------


def assess(
    config: LifecycleConfig,
    pattern: str = "*",
    listing: str | Inventory | LiveInventory | ParquetListing | None = None,
    *,
    listed_at: datetime | None = None,
    quick: bool = False,
    now: datetime | None = None,
    progress: Callable[[str], object] = lambda text: None,
) -> Assessment:
    """Assess the tables of all Iceberg catalogs whose keys match `pattern`, as in `tables` of lifecycle.yaml. Writes
    nothing, anywhere.

    `listing`: an S3 Inventory (its `manifest.json`), Parquet files (path, last_modified, size_in_bytes), or a live
    inventory (`CATALOG:b_BUCKET.inventory`, which starts Spark) of what is in the store; `listed_at` is when it was
    begun, if earlier than it says. Then all tables of the catalogs are read, since each may reach a listed file.
    `quick` reads metadata files alone. `progress` is called with how far it came.

    Raises ConfigError without a catalog, NoSuchTable if nothing matches, OperationsUnavailable or Refused if
    `catalogs.live` cannot be read, BadInput or StorageError for the listing. A table that cannot be read has an
    `error`.
    """
    at = host_now() if now is None else now
    for name, instant in (("now", now), ("listed_at", listed_at)):
        NaiveDatetime.refuse(name, instant)
    if quick and listing is not None:
        raise BadInput("quick reads no manifests, which a listing needs", hint="leave out one of them")
    if config.catalogs.live.type == "sql" and config.catalogs.live.uri is None:
        raise ConfigError(
            config.absent or "catalogs.live has no address, and assess starts no embedded Postgres",
            hint="name a catalog: artemis assess --catalog-type sql --uri postgresql+psycopg2://…, "
            "--catalog-type rest --uri https://…, or --config lifecycle.yaml",
        )
    with closing(Resources(config, only_reads=True)) as resources:
        return _Question(resources, config, pattern, at, quick, progress).answer(listing, listed_at)


@dataclass(frozen=True)
class _Listed:
    """The rows of a listing below the assessed tables: LISTED and kind; `known` are their sorted location hashes."""

    began_at: datetime
    rows: pa.Table
    hashes: NDArray[np.uint64]
    known: NDArray[np.uint64]


@dataclass(frozen=True)
class _Read:
    """What was read of a table. `metadata` is without snapshots. By sorted hashes: the listed files that it `reaches`,
    and those below it with a `twin` that it reaches under another scheme or authority."""

    row: TableAssessment
    neighbor: Neighbor
    metadata: TableMetadata | None = None
    reaches: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    twins: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))


@dataclass(frozen=True)
class _Question:
    resources: Resources
    config: LifecycleConfig
    pattern: str
    at: datetime
    quick: bool
    progress: Callable[[str], object]

    @cached_property
    def rules(self) -> LocationRules:
        return LocationRules.from_config(self.config.defaults.orphans)

    def answer(
        self, given: str | Inventory | LiveInventory | ParquetListing | None, listed_at: datetime | None
    ) -> Assessment:
        pointers, never, objects = self._readers(alone=given is None)
        # Tables beside a catalog in its database are only readers: their keys there are not their own names.
        here = [name for name, entry in pointers.items() if name == entry.identifier and self._is_asked(name)]
        rows = {name: TableAssessment(name, error=why) for name, why in never.items() if self._is_asked(name)}
        if not here and not rows:
            there = few(sorted({entry.catalog for entry in pointers.values()})) or "none"
            raise NoSuchTable(
                f"No table of catalog {self.config.catalogs.live.name} matches {self.pattern!r}",
                hint=f"check the pattern, and --catalog-name: there are tables of catalogs: {there}",
            )
        listed = None if given is None else self._listed(given, listed_at, [pointers[name] for name in here])
        names = here if listed is None else [*pointers]
        threads = 1 if all(is_local(pointers[name].metadata_location) for name in names) else _READERS
        work = partial(self._read, pointers, listed, frozenset(here))
        read: dict[str, _Read] = {}
        for name, each in zip(names, threaded(work, names, threads), strict=True):
            read[name] = each
            self.progress(f"{len(read):,} of {len(names):,} tables read")
        rows |= {name: read[name].row for name in here}
        neighbors = [each.neighbor for each in read.values()]
        rows |= self._with_shared(rows, neighbors)
        if listed is not None:
            readers = [*neighbors, *map(self._object, objects)]
            paimon = {f"{name}:*" for name, each in self.config.catalogs.others.items() if each.type == "paimon"}
            unread = {
                name: why for name, why in never.items() if name not in paimon
            }  # Paimon reads its warehouse alone.
            rows |= self._with_orphans(rows, read, listed, readers, unread | _unreadable(self.config, read))
        found = tuple(sorted(rows.values(), key=lambda row: (-(row.bytes_freeable or 0), row.table)))
        began, text = None if listed is None else listed.began_at, lifecycle_yaml(self.config, found, self.at)
        window, currency = self.config.defaults.retention.window, self.config.prices.currency
        return Assessment(self.at, self.quick, began, CANDIDATES, currency, found, text, window)

    def _is_asked(self, name: str) -> bool:
        return name not in RESULT_TABLES and (name == self.pattern or fits(name, self.pattern))

    def _readers(self, *, alone: bool) -> tuple[dict[str, CatalogEntry], dict[str, str], list[CatalogEntry]]:
        """Return all tables, why others cannot be loaded, and all other objects of the catalogs. `alone`: only what is
        asked for."""
        catalogs = self.config.catalogs
        if alone and "*" not in self.pattern:
            return {self.pattern: self.resources.catalogs.entry(self.pattern)}, {}, []

        def ask(catalog: CatalogReader) -> tuple[dict[str, CatalogEntry], dict[str, str], list[CatalogEntry]]:
            return *readers_in(catalogs, catalog), [] if alone else catalog.others()

        answers, errors = self.resources.catalogs.answering(ask, _ANSWER_WITHIN)
        rows = {name: entry for found, _, _ in answers.values() for name, entry in found.items()}
        pointers = {name: entry for name, entry in rows.items() if entry.problem is None}
        never = {name: why for _, failed, _ in answers.values() for name, why in failed.items()}
        never |= {name: entry.problem for name, entry in rows.items() if entry.problem is not None}
        never |= {f"{name}:*": error.what for name, error in errors.items()}
        never |= {
            f"{name}:*": f"assess does not read catalogs of type {other.type}; Nessie also answers as type rest"
            for name, other in catalogs.others.items()
        }
        return pointers, never, [each for _, _, others in answers.values() for each in others]

    # --- one table --------------------------------------------------------------------------------------------------

    def _read(
        self, pointers: Mapping[str, CatalogEntry], listed: _Listed | None, asked: frozenset[str], name: str
    ) -> _Read:
        stores, location, row = self.resources.live_stores, pointers[name].metadata_location, TableAssessment(name)
        try:
            metadata = read_table_metadata(stores, location)
        except LifecycleError as error:
            return _Read(replace(row, error=error.what), unreadable_neighbor(stores, self.rules, name, location, error))
        # Without its history, which is most of it.
        bare = replace(metadata, snapshots=(), snapshot_log=(), refs={}, current_snapshot_id=None)
        read = _Read(row, readable_neighbor(self.rules, name, metadata), bare)
        try:
            return self._measured(metadata, read, listed, asked=name in asked)
        except LifecycleError as error:
            return replace(read, row=replace(row, format_version=metadata.format_version, error=error.what))

    def _measured(self, metadata: TableMetadata, read: _Read, listed: _Listed | None, *, asked: bool) -> _Read:
        name, stores, problems = read.row.table, self.resources.live_stores, list[str]()
        decision = decide(view_of(metadata), retention_settings(self.resources, name), milliseconds(self.at))
        stored, expired = stores.head(metadata.metadata_location), decision.expired
        try:
            effective_policy(self.resources, name).require(EXPIRY)
            refuse_unexpirable(metadata, name)
        except Refused as error:
            problems.append(error.what)
            expired = ()
        gap = next((each for why in decision.kept.values() for each in why if each.kind == "log_gap"), None)
        if gap is not None:
            problems.append(str(gap))
        row = replace(
            read.row,
            format_version=metadata.format_version,
            snapshots=len(metadata.snapshots),
            snapshots_past_window=len(decision.expired),
            metadata_file_bytes=None if stored is None else stored.size_in_bytes,
            problems=tuple(problems),
        )
        if self.quick:
            return replace(read, row=row)
        # Without the cache in Redis, which would be written.
        index = IndexSettings(threads=self.config.reachability.threads)
        view = indexed(None, stores, metadata, self.resources.rules(name), "memory", index, IndexInMemory())
        if listed is not None:
            read = self._with_listed(read, IndexFiles(view), listed)
        if not asked:
            return replace(read, row=row)
        freeable = deletable(view, expired)
        (held,) = held_files(view, [[each.snapshot_id for each in metadata.snapshots]])
        health = table_health(None, stores, name, metadata, self.at)
        freed, kind = pc.sum(freeable.column("size_in_bytes")).as_py() or 0, storage_classes(self.config, name).live
        return replace(
            read,
            row=replace(
                row,
                files=held.files,
                bytes=held.size_in_bytes,
                files_freeable=freeable.num_rows,
                bytes_freeable=freed,
                data_files=health.data_files,
                small_files=health.small_files,
                manifests=health.manifests,
                metadata_bytes=held.metadata_size_in_bytes + health.metadata_file_bytes,
                cost_per_month=self.config.prices.storage(kind, held.size_in_bytes),
                freeable_per_month=self.config.prices.storage(kind, freed),
            ),
        )

    def _with_shared(
        self, rows: Mapping[str, TableAssessment], neighbors: Sequence[Neighbor]
    ) -> dict[str, TableAssessment]:
        """Return the rows of tables whose locations equal or nest those of another table that was read."""
        folders, places = Folders(self.rules), [(each.table, place) for each in neighbors for place in each.locations]
        at, shared = defaultdict[object, set[str]](set), defaultdict[str, set[str]](set)
        for name, place in places:
            at[place].add(name)
            at[folders.key(place) or place].add(name)
        for name, place in places:
            around: list[object] = [each for each in folders.above(place) if each is not None]
            while not is_root(place):
                around.append(place)
                place = parent(place)
            for other in set().union(*(at.get(each, ()) for each in around)) - {name}:
                shared[name].add(other)
                shared[other].add(name)
        said = {name: few(sorted(others)) for name, others in shared.items() if name in rows}
        return {
            name: replace(rows[name], problems=(*rows[name].problems, f"shares or nests its location with {others}"))
            for name, others in said.items()
        }

    # --- orphans ----------------------------------------------------------------------------------------------------

    def _listed(
        self,
        given: str | Inventory | LiveInventory | ParquetListing,
        listed_at: datetime | None,
        entries: Sequence[CatalogEntry],
    ) -> _Listed:
        stores = self.resources.live_stores
        if isinstance(given, str) and is_live_inventory(given):
            given = read_live_inventory(self.resources.spark, given, self.config.catalogs.live.name)
        elif isinstance(given, str):
            given = read_inventory(stores, given) if given.endswith(".json") else read_parquet_listing(stores, given)
        # Metadata is read from here on: what a listing saw later could belong to a commit that is not known.
        began_at = min(given.begun_at, self.at, listed_at or self.at)
        locations = dict[str, None]()
        for entry in entries:
            try:
                locations |= dict.fromkeys(spelled_locations(read_table_metadata(stores, entry.metadata_location)))
            except LifecycleError:
                continue  # Nothing of it is counted.
        if isinstance(given, LiveInventory):
            rows = given.rows(self.resources.spark, [*locations], self.rules)
        else:
            rows = rows_below(stores, given, [*locations], self.rules)
        subjects = subject_array(rows.column("path").combine_chunks())
        hashes = hash_column(subjects, self.rules)
        rows = rows.append_column("kind", kinds_by_name(subjects))
        return _Listed(began_at, rows, hashes, distinct(hashes))

    def _with_listed(self, read: _Read, files: IndexFiles, listed: _Listed) -> _Read:
        """Return what the table has with the listing in common. `files` are not needed any more."""
        assert read.metadata is not None
        found = [hash_texts(metadata_files(read.metadata, self.rules), self.rules)]
        files.visit(lambda paths: found.append(hash_column(paths, self.rules)))
        reaches = distinct(np.concatenate(found))
        left = _below(listed, read.metadata, self.rules, ~among(reaches, listed.hashes))
        known = [Known.reached_by(files, self.rules)]
        rows = sorted({row for row, _ in twins(left.column("path").combine_chunks(), known, self.rules)})
        of_twins = hash_column(subject_array(left.column("path").combine_chunks()), self.rules)[rows]
        return replace(read, reaches=reaches[among(listed.known, reaches)], twins=distinct(of_twins))

    def _with_orphans(
        self,
        rows: Mapping[str, TableAssessment],
        read: Mapping[str, _Read],
        listed: _Listed,
        readers: Sequence[Neighbor],
        unread: Mapping[str, str],
    ) -> dict[str, TableAssessment]:
        """Return the rows with orphan candidates, or with the reason that they are unknown."""
        reached = distinct(np.concatenate([each.reaches for each in read.values()]))
        folders, found = Folders(self.rules), dict[str, TableAssessment]()
        for name, row in rows.items():
            metadata = read[name].metadata if name in read else None
            if metadata is None or row.error is not None or not metadata.gc_enabled:
                continue  # Its other problems say so.
            try:
                if unread:
                    first = min(unread)
                    raise Refused(f"tables that may read them cannot be read: {few(sorted(unread))} ({unread[first]})")
                if self.resources.rules(name) != self.rules:
                    raise Refused("its equal_schemes or equal_authorities differ from those of defaults")
                effective_policy(self.resources, name).require(REMOVAL)
                others = [each for each in readers if each.table != name]
                left = self._orphans(read[name], metadata, listed, reached, others, folders)
                size = pc.sum(left.column("size_in_bytes")).as_py() or 0
                found[name] = replace(row, orphan_files=left.num_rows, orphan_bytes=size)
            except LifecycleError as error:
                found[name] = replace(row, problems=(*row.problems, f"its orphans are unknown: {error.what}"))
        return found

    def _orphans(
        self,
        read: _Read,
        metadata: TableMetadata,
        listed: _Listed,
        reached: NDArray[np.uint64],
        others: Sequence[Neighbor],
        folders: Folders,
    ) -> pa.Table:
        """Return the rows of the table's candidates: what protection does not keep, as far as it can be asked."""
        config, rules, name = self.config, self.rules, read.row.table
        policy, min_age = config.policy(name), effective_policy(self.resources, name).min_age
        left = _below(listed, metadata, rules, ~among(reached, listed.hashes))
        own = own_locations(metadata, rules)
        tiers = (config.catalogs.cold.root, config.quarantine.root, config.operations.root)
        formats = (each.warehouse for each in config.catalogs.others.values())
        reserved = [normalize(each.rstrip("/"), rules) for each in (*tiers, *formats) if each is not None]
        places = Places(
            own=own,
            nested=(*nested_locations(others, own, folders), *reserved),
            in_flight=(),
            rules=rules,
            receipts=tuple(f"{folder}/{RECEIPTS}" for folder in metadata_locations(metadata, rules)),
            roots=tuple(normalize(root, rules) for root in config.catalogs.of(name).places),
            partition_fields=metadata.partition_fields if policy.orphans.hidden == "keep" else None,
        )
        settings = ScanSettings(min_age, policy.orphans.min_age_floor, policy.retention.window)
        listing = Listing("", (), listed.began_at, listed.began_at, "", left.num_rows, 0)
        needed = hash_texts(metadata_files(metadata, rules), rules)
        known: tuple[tuple[str, NDArray[np.uint64]], ...] = ((REACHABLE, reached), (CURRENT_METADATA, needed))
        same = None if policy.orphans.prefix_mismatch == "delete" else read.twins
        protected = ProtectedFiles(known, places, same, cutoffs(listing, settings, name))
        left = _without(left, protected.reasons(left))
        around = {parent(normalize(path, rules)) for path in left.column("path").to_pylist()}
        stores = self.resources.live_stores
        logs = claims(stores, possible_roots(around, own, places.roots, rules), own) if around else {}
        if logs:
            known += tuple((OTHER_TABLE, hash_texts(named or (), rules)) for named in logs.values())
            theirs = (root if named is None else f"{root}/{DELTA_LOG}" for root, named in logs.items())
            places = replace(places, nested=(*places.nested, *theirs))
            left = _without(left, replace(protected, known=known, places=places).reasons(left))
        return left

    def _object(self, entry: CatalogEntry) -> Neighbor:
        """Return the places of an object that is not a table."""
        name = f"{entry.type} {entry.catalog}:{entry.identifier}"
        places = [normalize(entry.location.rstrip("/"), self.rules)] if entry.location else []
        if not entry.metadata_location:
            return Neighbor(name, None, "", tuple(places), is_readable=False, reads_folder=True)
        stores, location = self.resources.live_stores, entry.metadata_location
        try:
            return readable_neighbor(self.rules, name, read_table_metadata(stores, location))
        except LifecycleError as error:
            return unreadable_neighbor(stores, self.rules, name, location, error, places)


def _unreadable(config: LifecycleConfig, read: Mapping[str, _Read]) -> dict[str, str]:
    """Return the tables that may read any file, since what they read is unknown, and why."""
    failed = {name: each.row.error for name, each in read.items() if each.row.error is not None}
    apart = (name for name in failed if config.catalogs.is_isolated(name) or not is_addressable(name))
    return {name: why for name, why in failed.items() if name not in {*apart}}


def _below(listed: _Listed, metadata: TableMetadata, rules: LocationRules, rows: NDArray[np.bool_]) -> pa.Table:
    """Return those of the listed `rows` that are below the table's locations."""
    found, below = listed.rows.filter(pa.array(rows)), Below(spelled_locations(metadata), rules)
    return pa.Table.from_batches(below(found.to_batches()), found.schema)


def _without(rows: pa.Table, kept: Iterable[int]) -> pa.Table:
    mask = np.ones(rows.num_rows, np.bool_)
    mask[[*kept]] = False
    return rows.filter(pa.array(mask))


# --- lifecycle.yaml ---------------------------------------------------------------------------------------------------


def lifecycle_yaml(config: LifecycleConfig, tables: Sequence[TableAssessment], at: datetime) -> str:
    """Return a lifecycle.yaml for the catalogs of `config` and those of `tables` without a problem. Secrets become
    names of environment variables."""
    named = {"live": config.catalogs.live, **config.catalogs.named}
    homeless, retention = [key for key, catalog in named.items() if catalog.root is None], config.defaults.retention
    sections: dict[str, Any] = {
        "catalogs": {key: _settings(catalog, key) for key, catalog in named.items()},
        "defaults": {
            "retention": {"rule": retention.rule, "window": format_duration(retention.window)},
            "cold_tier": {"enabled": False},
            "deletion": {"grace": format_duration(config.defaults.deletion.grace)},
        },
        "tables": {table.table: {} for table in tables if not problems_of(table)},
    }
    left_out = [f"#   {terminal(each.table)}: {terminal(problems_of(each)[0])}" for each in tables if problems_of(each)]
    lines = [
        f"# To begin with; written by artemis assess, {at:%Y-%m-%d %H:%M} UTC. Every key: docs/configuration.md",
        "# Nothing is archived (cold_tier). Plans and holds are kept in an embedded Postgres in .artemis, unless",
        "# operations.uri and operations.root name places of yours.",
        *(f"# catalogs.{key}.warehouse is missing: without it, no orphan may be deleted." for key in homeless),
        yaml.safe_dump(sections, sort_keys=False, allow_unicode=True, width=120).rstrip(),
        *(["# Left out:", *left_out] if left_out else []),
    ]
    return "\n".join(lines) + "\n"


def _settings(catalog: Catalog, key: str) -> dict[str, Any]:
    said = catalog.model_dump(mode="json", exclude_defaults=True, exclude={"properties", "uri", "expected_latency"})
    uri = {} if catalog.uri is None else {"uri": _uri(catalog.uri, key)}
    properties = {name: _literal(value) for name, value in catalog.properties.items()}
    for name in filter(SECRET.search, properties):
        properties[name] = f"${{{key.upper()}_{re.sub('[^A-Z0-9]+', '_', name.upper())}}}"
    return {"type": catalog.type, **uri, **said, **({"properties": properties} if properties else {})}


def _uri(uri: str, key: str) -> str:
    name = f"${{{key.upper()}_PASSWORD}}"
    # In the login, or in the query, where libpq accepts it, too; but not what is a name already.
    in_query = rf"([?&][^=&]*(?:{SECRET.pattern})[^=&]*=)(?!\$\{{)[^&]*"
    shown = re.sub(r"(://[^:@/?]*:)(?!\$\{)[^@/?]*(?=@)", lambda found: found[1] + name, _literal(uri))
    return re.sub(in_query, lambda found: found[1] + name, shown, flags=re.IGNORECASE)


def _literal(value: str) -> str:
    """Return a value as lifecycle.yaml reads it back: what came from the environment by its name again."""
    shown = hidden(value)
    return shown if shown != value else value.replace("$", "$$")
