"""Bad input: hostile metadata, manifests, listings, names and addresses. Every case ends in an error that says what
happened and what was left untouched, or is passed over; none takes a file that a kept snapshot reaches, nor any file
outside the table.

One small table is built; each case damages its files or its metadata, runs a step, and puts everything back.
"""

from __future__ import annotations

import copy
import gzip
import json
import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from sqlalchemy import delete, text

from artemis_lifecycle import cli
from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import jdbc_url
from artemis_lifecycle.catalogs.sql import publish
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.errors import LifecycleError, UnreadableMetadata
from artemis_lifecycle.metadata import manifest_lists, manifests
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata
from artemis_lifecycle.metadata.types import ManifestListEntry, Snapshot, SnapshotSummary
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.known_tables import table_locations
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deletion.world import World, local, make_old, outcomes
from artemis_lifecycle_tests.end_report import add_lines
from artemis_lifecycle_tests.metadata.avro_files import (
    MANIFEST_LIST,
    SYNC,
    Schema,
    Shelf,
    avro_file,
    entry_for,
    file_record,
    list_record,
    manifest_schema,
)
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.reachability.answers import examples
from artemis_lifecycle_tests.reachability.avro_by_hand import long as avro_long
from artemis_lifecycle_tests.reachability.avro_by_hand import text as avro_text

POLICY: dict[str, Any] = {**AT_ONCE, "cold_tier": {"enabled": False}}
SECRET = "hush-hush/+%41 x"
LONG = "n" * 10_240

# --- the report -------------------------------------------------------------------------------------------------------


def _require_clear(case: str, error: LifecycleError) -> None:
    assert error.what and error.untouched, f"{case}: {error!r} does not say what was left untouched"
    assert "Traceback" not in str(error) and "org.apache" not in str(error), f"{case}: {error}"


class Counted:
    """What became of each case: counted by group at the end of the run, and listed where `-rP` asks for what passed."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def add(self, group: str, case: str, outcome: str) -> None:
        self.rows.append((group, case, outcome))

    def run(self, group: str, case: str, call: Callable[[], object]) -> BaseException | None:
        """Run one case. Anything but an error of ours, with what it left untouched, fails the test."""
        try:
            found = call()
        except LifecycleError as error:
            _require_clear(case, error)
            self.add(group, case, f"{type(error).__name__}: {error.what}")
            return error
        self.add(group, case, found if isinstance(found, str) else "passed over")
        return None

    def refused(self, group: str, case: str, call: Callable[[], object]) -> LifecycleError:
        error = self.run(group, case, call)
        assert isinstance(error, LifecycleError), f"{group}, {case}: was not refused"
        return error

    def table(self) -> str:
        def shown(said: str, width: int) -> str:
            plain = said.encode("unicode_escape").decode()
            return plain if len(plain) <= width else plain[: width - 1] + "…"

        lines = [f"{group:<22} {shown(case, 58):<58} {shown(outcome, 100)}" for group, case, outcome in self.rows]
        return "\n".join(lines)

    def counts(self) -> Iterator[str]:
        counts = Counter(group for group, _, _ in self.rows)
        for group, count in (*counts.items(), ("all", len(self.rows))):
            yield f"{group:<22} {count:>4}"


@pytest.fixture(scope="module")
def counted() -> Counted:
    return Counted()


# --- the table, its bytes, and putting them back ----------------------------------------------------------------------


def _tree(*folders: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.name.endswith(".crc")
    }


@dataclass
class Bench:
    """The table `db.t` and its neighbor `db.other`, as they were built."""

    lifecycle: Lifecycle
    home: Path
    table: str = "db.t"
    document: dict[str, Any] = field(default_factory=dict)
    pointer: str = ""
    files: dict[Path, bytes] = field(default_factory=dict)
    reached: set[Path] = field(default_factory=set)
    rows: dict[int, list[int]] = field(default_factory=dict)

    @property
    def stores(self) -> Stores:
        return self.lifecycle.live_stores

    @property
    def location(self) -> str:
        return str(self.document["location"])

    @property
    def place(self) -> Path:
        return local(self.location)

    @property
    def watched(self) -> tuple[Path, ...]:
        """Everything that no case may take from; the project's own results and sealed lists are not in it."""
        return self.home / "live" / "db", self.home / "cold", self.home.parent / "outside"

    @property
    def world(self) -> World:
        lifecycle = self.lifecycle
        live = lifecycle.config.catalogs.live.name
        return World(
            lifecycle.spark,
            lifecycle.operations,
            lifecycle.resources.live_catalog,
            live,
            self.home / "live",
            lifecycle.root,
        )

    def remember(self) -> None:
        live = self.lifecycle.config.catalogs.live.name
        self.pointer = self.lifecycle.resources.live_catalog.entry(self.table).metadata_location
        self.document = json.loads(self.stores.read(self.pointer))
        self.files = _tree(*self.watched)
        current = self.document["current-snapshot-id"]
        full = f"{live}.{self.table}"
        spark = self.lifecycle.spark
        paths = [row[0] for row in spark.sql(f"SELECT file_path FROM {full}.files").collect()]
        paths += [row[0] for row in spark.sql(f"SELECT path FROM {full}.manifests").collect()]
        paths += [s["manifest-list"] for s in self.document["snapshots"] if s["snapshot-id"] == current]
        self.reached = {local(path) for path in paths}
        assert all(path.exists() for path in self.reached)
        self.rows = {s["snapshot-id"]: self.read(s["snapshot-id"]) for s in self.document["snapshots"]}

    def read(self, snapshot_id: int) -> list[int]:
        live = self.lifecycle.config.catalogs.live.name
        found = self.lifecycle.spark.sql(f"SELECT id FROM {live}.{self.table} VERSION AS OF {snapshot_id}").collect()
        return sorted(row[0] for row in found)

    def point_at(self, location: str) -> None:
        entry = self.lifecycle.resources.live_catalog.entry(self.table)
        if entry.metadata_location != location:
            with self.lifecycle.operations.engine.begin() as connection:
                publish(
                    connection,
                    entry.catalog,
                    entry.identifier,
                    expected_location=entry.metadata_location,
                    new_location=location,
                )

    @contextmanager
    def put_back(self, removed: Iterable[Path] = ()) -> Iterator[None]:
        """After the block: nothing that is kept, and nothing outside the table, was taken. Then all is as it was."""
        self._forget()
        try:
            yield
            now = _tree(*self.watched)
            lost = {path for path in self.files if path not in now}.difference(removed)
            assert not lost & self.reached, f"reachable files were deleted: {lost & self.reached}"
            outside = {path for path in lost if not path.is_relative_to(self.place)}
            assert not outside, f"files outside the table were deleted: {outside}"
        finally:
            self.point_at(self.pointer)
            for path in _tree(*self.watched).keys() - self.files.keys():
                path.unlink()
                (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
            for path, data in self.files.items():
                if not path.exists() or path.read_bytes() != data:
                    path.write_bytes(data)
            self._forget()

    def _forget(self) -> None:
        # What was read of damaged files may not answer for whole ones, nor the other way round.
        shutil.rmtree(local(self.lifecycle.root) / "index", ignore_errors=True)
        # Nor may a location that only a hostile document named stay one of the table's own.
        with self.lifecycle.operations.engine.begin() as connection:
            connection.execute(delete(table_locations))

    @contextmanager
    def damaged(self, files: Mapping[Path, bytes | None]) -> Iterator[None]:
        with self.put_back([path for path, data in files.items() if data is None]):
            for path, data in files.items():
                path.unlink() if data is None else path.write_bytes(data)
            yield

    @contextmanager
    def hostile(self, document: Any) -> Iterator[None]:
        """The table's metadata is `document`."""
        with self.put_back():
            data = document if isinstance(document, bytes) else json.dumps(document).encode()
            location = f"{self.location}/metadata/90000-{uuid.uuid4()}.metadata.json"
            self.stores.write(location, data)
            self.point_at(location)
            yield

    def changed(self, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        document = copy.deepcopy(self.document)
        document["metadata-log"] = []
        change(document)
        return document

    def snapshot(self, number: int) -> Snapshot:
        return parse_table_metadata(json.dumps(self.document).encode(), self.pointer).snapshots[number]

    def plan(self) -> str:
        """Plan, and do what the commit would do without doing it."""
        plan = self.lifecycle.plan_expiration(self.table)
        named = {local(row.path) for row in plan.files().collect()}
        assert not named & self.reached, f"the plan names reachable files: {named & self.reached}"
        self.lifecycle.commit_expiration(plan, dry_run=True)
        return f"passed over: {plan.summary.files} files of {plan.summary.snapshots_expired} snapshots"

    def walk(self) -> str:
        """Expire everything that may go; what that did."""
        plan = self.lifecycle.plan_expiration(self.table)
        self.lifecycle.commit_expiration(plan)
        report = self.lifecycle.delete_files(plan)
        return f"passed over: {report.deleted} deleted, {report.kept} kept, {report.failed} failed"


@pytest.fixture(scope="module")
def bench(spark: SparkSession, module_configs: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    config = module_configs(defaults=POLICY, tables={"db.*": {}})
    live = config.catalogs.live.name
    with Lifecycle.open(config, spark=spark) as lifecycle:
        assert config.catalogs.live.warehouse is not None
        home = local(config.catalogs.live.warehouse).parent
        made = Bench(lifecycle, home)
        outside = home.parent / "outside"
        outside.mkdir()
        (outside / "victim.parquet").write_bytes(b"PAR1")
        (home / "cold" / "db" / "t").mkdir(parents=True)
        (home / "cold" / "db" / "t" / "archived.parquet").write_bytes(b"PAR1")
        for path in (outside / "victim.parquet", home / "cold" / "db" / "t" / "archived.parquet"):
            make_old(path, timedelta(days=100))
        core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
        for name in ("t", "other"):
            spark.sql(
                f"CREATE TABLE {live}.db.{name} (id int) USING iceberg "
                "TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
            )
            for first, last in ((0, 3), (10, 11)):
                spark.range(first, last).selectExpr("CAST(id AS int)").coalesce(1).writeTo(f"{live}.db.{name}").append()
        spark.sql(f"DELETE FROM {live}.db.t WHERE id = 1")
        spark.sql(f"DELETE FROM {live}.db.t WHERE id = 10")
        spark.range(11, 12).selectExpr("CAST(id AS int)").coalesce(1).writeTo(f"{live}.db.t").append()
        made.remember()
        yield made
        # After all that befell it.
        assert {snapshot: made.read(snapshot) for snapshot in made.rows} == made.rows


# --- hostile JSON -----------------------------------------------------------------------------------------------------


def _put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        node: Any = document
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


def _without(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        node: Any = document
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return change


REQUIRED = (
    ("format-version",),
    ("table-uuid",),
    ("location",),
    ("last-updated-ms",),
    ("last-sequence-number",),
    ("last-column-id",),
    ("schemas",),
    ("current-schema-id",),
    ("partition-specs",),
    ("default-spec-id",),
    ("snapshots",),
    ("snapshots", 0, "snapshot-id"),
    ("snapshots", 0, "timestamp-ms"),
    ("snapshots", 0, "manifest-list"),
    ("refs", "main", "snapshot-id"),
    ("refs", "main", "type"),
    ("snapshot-log", 0, "timestamp-ms"),
    ("snapshot-log", 0, "snapshot-id"),
)
WRONG_VALUES = (None, "five", 1.5, True, [1], {"a": 1}, 2**63, 10**400)


def test_metadata_json_that_lacks_or_mistypes_what_is_required(bench: Bench, counted: Counted) -> None:
    for way in REQUIRED:
        data = json.dumps(bench.changed(_without(*way))).encode()
        counted.refused("json: lacks", "/".join(map(str, way)), lambda data=data: parse_table_metadata(data, "v1.json"))
        for value in WRONG_VALUES:
            if value == "five" and way[-1] in ("location", "manifest-list"):
                continue
            data = json.dumps(bench.changed(_put(*way, value=value))).encode()
            case = f"{'/'.join(map(str, way))} = {str(value)[:20]!r}"
            counted.refused("json: mistyped", case, lambda data=data: parse_table_metadata(data, "v1.json"))


def test_metadata_json_that_contradicts_itself_or_is_invalid(bench: Bench, counted: Counted) -> None:
    whole = json.dumps(bench.document).encode()
    squeezed = gzip.compress(whole)
    deep = [b"[" * depth + b"]" * depth for depth in (2_000, 200_000)]
    hostile: dict[str, bytes] = {
        "empty": b"",
        "null": b"null",
        "a list": b"[]",
        "UTF-16": whole.decode().encode("utf-16"),
        "a byte order mark": b"\xef\xbb\xbf" + whole,
        "bytes that are no UTF-8": whole.replace(b"append", b"app\xff\xfe", 1),
        "twice": whole * 2,
        "a tail": whole + b"}",
        "a NUL behind it": whole + b"\0",
        "5,000 digits": whole.replace(b'"format-version": 2', b'"format-version": ' + b"2" * 5_000),
        "nested": deep[0],
        "nested without end": deep[1],
        "nested in an unknown field": whole[:-1] + b', "x": ' + deep[1] + b"}",
        "the data file of a table": b"PAR1" + bytes(64),
        "gzip, cut": squeezed[:-9],
        "gzip, flipped": squeezed[:40] + bytes([squeezed[40] ^ 0xFF]) + squeezed[41:],
        "gzip of gzip": gzip.compress(squeezed),
    }
    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "format version 5": _put("format-version", value=5),
        "format version 0": _put("format-version", value=0),
        "two snapshots of one id": lambda d: d["snapshots"].append(d["snapshots"][0]),
        "current is not among the snapshots": _put("current-snapshot-id", value=4711),
        "main is elsewhere": lambda d: _put("refs", "main", "snapshot-id", value=d["snapshots"][0]["snapshot-id"])(d),
        "main is a tag": _put("refs", "main", "type", value="tag"),
        "a ref of no type": _put("refs", "main", "type", value="bough"),
        "a sequence number beyond the table's": _put("snapshots", 0, "sequence-number", value=10**9),
        "a table-uuid that climbs": _put("table-uuid", value="../../../live/db/t"),
        "a table-uuid of nothing": _put("table-uuid", value=""),
        "a table-uuid with a NUL": _put("table-uuid", value="\0" * 36),
        "a table-uuid of 10 KB": _put("table-uuid", value=LONG),
        "a summary with a number": _put("snapshots", 0, "summary", "total-data-files", value=1),
        "a summary that is a list": _put("snapshots", 0, "summary", value=[]),
        "properties that are no texts": _put("properties", "x", value={"y": 1}),
        "statistics of no size": _put("statistics", value=[{"snapshot-id": 1, "statistics-path": "/x"}]),
        "a current schema that is not there": _put("current-schema-id", value=99),
        "a default spec that is not there": _put("default-spec-id", value=99),
        "a metadata log of numbers": _put("metadata-log", value=[7]),
        "inline manifests of numbers": lambda d: (
            d["snapshots"][0].update({"manifests": [1]}) or d["snapshots"][0].pop("manifest-list")
        ),
        "a manifest list of no name": _put("snapshots", 0, "manifest-list", value=""),
    }
    hostile |= {name: json.dumps(bench.changed(change)).encode() for name, change in changes.items()}
    for name, data in hostile.items():
        place = "v1.gz.metadata.json" if name.startswith("gzip") else "v1.metadata.json"
        counted.refused("json: hostile", name, lambda data=data, place=place: parse_table_metadata(data, place))
    # Every cut of the file: none is a shorter history.
    for end in range(len(whole) - 1, 0, -97):
        with pytest.raises(UnreadableMetadata):
            parse_table_metadata(whole[:end], "v1.metadata.json")
    counted.add("json: hostile", f"{len(range(len(whole) - 1, 0, -97))} cuts of the file", "UnreadableMetadata each")


# --- hostile Avro -----------------------------------------------------------------------------------------------------

MANIFEST_READERS: tuple[Callable[..., Any], ...] = (
    manifests.live_entries,
    manifests.live_files,
    manifests.live_sort_orders,
)
LIST_READERS: tuple[Callable[..., Any], ...] = (manifest_lists.manifests_of, manifest_lists.listed_manifests)


def _manifest_readers(data: bytes, entry: ManifestListEntry | None = None) -> Iterator[Callable[[], Any]]:
    named = entry or entry_for("/x/m.avro", data, counts=(None, None, None))
    shelf = Shelf({named.manifest_path: data})
    for reader in MANIFEST_READERS:
        yield lambda reader=reader: reader(shelf, named)


def _list_readers(data: bytes, summary: Mapping[str, str] | None = None) -> Iterator[Callable[[], Any]]:
    snapshot = Snapshot(1, None, 1, 1, "/x/l.avro", summary=SnapshotSummary("append", dict(summary or {})))
    for reader in LIST_READERS:
        yield lambda reader=reader: reader(Shelf({"/x/l.avro": data}), snapshot)


def _all_refuse(counted: Counted, group: str, case: str, readers: Iterable[Callable[[], Any]]) -> None:
    """Each of the readers, which must agree, is a check of one case."""
    said = []
    for reader in readers:
        with pytest.raises(LifecycleError) as refused:
            reader()
        assert refused.value.untouched, case
        said.append(refused.value)
    counted.add(group, case, f"{type(said[0]).__name__}: {said[0].what}")


def _file(schema: Schema | str, count: int, payload: bytes, *, codec: str = "null", size: int | None = None) -> bytes:
    """An Avro file of one block with these claims about itself."""
    text_of = schema if isinstance(schema, str) else json.dumps(schema)
    pairs = {"avro.schema": text_of, "avro.codec": codec}
    head = b"Obj\x01" + avro_long(len(pairs)) + b"".join(avro_text(k) + avro_text(v) for k, v in pairs.items())
    said = len(payload) if size is None else size
    return head + avro_long(0) + SYNC + avro_long(count) + avro_long(said) + payload + SYNC


def _retyped(schema: Schema, way: tuple[str, ...], kind: Any) -> Schema:
    changed = copy.deepcopy(schema)
    node = changed
    for name in way[:-1]:
        node = next(each for each in node["fields"] if each["name"] == name)["type"]
    found = next(each for each in node["fields"] if each["name"] == way[-1])
    found["type"] = kind
    found.pop("default", None)
    return changed


def _with(record: dict[str, Any], way: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(record)
    node = changed
    for name in way[:-1]:
        node = node[name]
    node[way[-1]] = value
    return changed


KINDS: tuple[tuple[Any, Any], ...] = (
    ("null", None),
    ("boolean", True),
    ("double", 1.5),
    ({"type": "array", "items": "long"}, [1]),
    ({"type": "map", "values": "long"}, {"a": 1}),
)
NUMBERS = (("status",), ("data_file", "file_size_in_bytes"), ("data_file", "record_count"))
TEXTS = (("data_file", "file_path"), ("data_file", "file_format"))


@pytest.mark.seconds
def test_manifests_whose_fields_are_of_other_types(counted: Counted) -> None:
    schema = manifest_schema()
    for way, kinds in (
        *((way, (*KINDS, ("string", "x"))) for way in NUMBERS),
        *((way, (*KINDS, ("long", 7))) for way in TEXTS),
    ):
        for kind, value in kinds:
            data = avro_file(_retyped(schema, way, kind), [_with(file_record(1), way, value)])
            readers = list(_manifest_readers(data))
            if way[-1] == "record_count":
                # The one of them that reachability does not need.
                readers = readers[:1]
            _all_refuse(counted, "manifest: types", f"{'.'.join(way)} is {kind}", readers)
    for name in ("manifest_path", "manifest_length", "added_files_count", "content"):
        for kind, value in (*KINDS[1:], ("bytes", b"\xff\x00")):
            way = (name,)
            data = avro_file(_retyped(MANIFEST_LIST, way, kind), [_with(list_record("/x/m", 9), way, value)])
            if kind == "boolean":
                continue
            _all_refuse(counted, "list: types", f"{name} is {kind}", _list_readers(data, {"total-data-files": "0"}))


def test_manifests_and_lists_that_claim_absurd_things(counted: Counted) -> None:
    manifest, listing = manifest_schema(), MANIFEST_LIST
    chain = {"type": "record", "name": "link", "fields": [{"name": "next", "type": ["null", "link"]}]}
    for count in (2**20, 2**31, 2**40, 2**62, 2**63 - 1, -1, -(2**40)):
        for payload in (b"", bytes(24)):
            case = f"{count:,} records in {len(payload)} bytes"
            _all_refuse(counted, "avro: absurd", case, _manifest_readers(_file(manifest, count, payload)))
            _all_refuse(counted, "avro: absurd", f"list, {case}", _list_readers(_file(listing, count, payload)))
    for size in (2**40, 2**63 - 1, -5):
        _all_refuse(
            counted, "avro: absurd", f"a block of {size} bytes", _manifest_readers(_file(manifest, 1, b"x", size=size))
        )
    for codec in ("deflate", "snappy", "zstandard", "bzip2", "", "nul\0l"):
        for payload in (b"\x00", b"\xff" * 30, avro_long(2**40) + b"abcdef", b"\xff" * 8 + b"\x7f" + b"a" * 20):
            case = f"codec {codec!r}, block {payload[:3].hex()}…"
            _all_refuse(counted, "avro: codecs", case, _manifest_readers(_file(manifest, 1, payload, codec=codec)))

    def with_field(kind: Any) -> Schema:
        return {**manifest, "fields": [{"name": "more", "type": kind, "field-id": 900}, *manifest["fields"]]}

    schemas: dict[str, Schema | str] = {
        "is null": "null",
        "is a number": "5",
        "is a list": "[]",
        "is a record of no fields": '{"type":"record","name":"r","fields":[]}',
        "has fields that are a number": '{"type":"record","name":"r","fields":5}',
        "has a field without a name": '{"type":"record","name":"r","fields":[{"type":"int"}]}',
        "is not JSON": "{",
        "has a fixed of 2^70 bytes": with_field({"type": "fixed", "name": "f", "size": 2**70}),
        "has a fixed of 2^63-1 bytes": with_field({"type": "fixed", "name": "f", "size": 2**63 - 1}),
        "has a fixed of -1 bytes": with_field({"type": "fixed", "name": "f", "size": -1}),
        "has a fixed of some bytes": with_field({"type": "fixed", "name": "f", "size": "some"}),
        "has an enum of nothing": with_field({"type": "enum", "name": "e", "symbols": None}),
        "has a type that is not there": with_field("nonsense"),
        "has a type of a type of nothing": with_field({"type": {"type": {}}}),
        "is nested 900 deep": json.dumps(manifest)[:-2]
        + ',{"name":"m","type":'
        + "[" * 900
        + '"int"'
        + "]" * 900
        + "}]}",
        "is nested 100,000 deep": '{"type":' * 100_000 + '"int"' + "}" * 100_000,
        "holds itself, 5,000 deep": with_field(chain),
        "claims 2^40 empty items": with_field({"type": "array", "items": "null"}),
    }
    payloads = {
        "holds itself, 5,000 deep": b"\x02" * 5_000,
        "claims 2^40 empty items": avro_long(2**40) + bytes(40),
    }
    for name, schema in schemas.items():
        data = _file(schema, 1, payloads.get(name, bytes(60)))
        _all_refuse(counted, "avro: schemas", f"the schema {name}", _manifest_readers(data))
    heads = {
        "2^62 entries": b"Obj\x01" + avro_long(2**62) + avro_text("a") + avro_text("b"),
        "-2^63 entries": b"Obj\x01" + avro_long(-(2**63)) + avro_text("a") + avro_text("b"),
        "a number without end": b"Obj\x01" + b"\xff" * 40,
        "a text without end": b"Obj\x01" + avro_long(1) + avro_long(2**50) + b"a",
        "nothing": b"Obj\x01",
        "another format": b"PAR1" + bytes(100),
    }
    for name, data in heads.items():
        _all_refuse(counted, "avro: headers", f"the header has {name}", _manifest_readers(data))
        _all_refuse(counted, "avro: headers", f"list, the header has {name}", _list_readers(data))


def test_entries_that_contradict_the_level_above(counted: Counted) -> None:
    schema = manifest_schema()
    two = avro_file(schema, [file_record(1), file_record(2, status=0)])
    wrong: dict[str, tuple[bytes, ManifestListEntry]] = {
        f"counts {counts}": (two, entry_for("/x/m.avro", two, counts=counts))
        for counts in ((0, 1, 0), (1, 1, 1), (2, 0, 0), (10**9, 1, 0), (1, 2**31 - 1, 0), (-1, 1, 0))
    }
    for length in (0, len(two) - 1, len(two) + 1, 2**62):
        entry = entry_for("/x/m.avro", two, counts=(1, 1, 0))
        wrong[f"length {length}"] = (two, replace(entry, manifest_length=length))
    wrong["of deletes, said to be of data"] = (
        avro_file(schema, [file_record(1, content=1)]),
        entry_for("/x/m.avro", avro_file(schema, [file_record(1, content=1)]), counts=(0, 1, 0)),
    )
    for name, changes in {
        "status 3": {"status": 3},
        "status 256": {"status": 256},
        "status -1": {"status": -1},
        "content 7": {"content": 7},
        "content 300": {"content": 300},
        "content -1": {"content": -1},
    }.items():
        data = avro_file(schema, [file_record(1, **changes)])
        wrong[name] = (data, entry_for("/x/m.avro", data, counts=(None, None, None)))
    for name, (data, entry) in wrong.items():
        _all_refuse(counted, "manifest: contradicts", name, _manifest_readers(data, entry))
    no_text = avro_file(MANIFEST_LIST, [list_record("/x/marked", 5)], codec="null").replace(
        b"/x/marked", b"/x/\xff\xfe\x80\x80\x80\x80"
    )
    _all_refuse(counted, "list: contradicts", "a path that is not UTF-8", _list_readers(no_text))
    lists: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
        "a length of -1": (list_record("/x/m", -1), {}),
        "a length of -2^40": (list_record("/x/m", -(2**40)), {}),
        "content 5": (list_record("/x/m", 5, 5), {}),
        "a count of -1": (list_record("/x/m", 5, counts=(0, -1, 0)), {}),
        "fewer data files than the summary": (list_record("/x/m", 5, counts=(0, 1, 0)), {"total-data-files": "2"}),
        "fewer delete files than the summary": (list_record("/x/m", 5, counts=(0, 1, 0)), {"total-delete-files": "1"}),
        "10^24 data files in the summary": (
            list_record("/x/m", 5, counts=(0, 1, 0)),
            {"total-data-files": "1" + "0" * 24},
        ),
        "a key": (list_record("/x/m", 5, key_metadata=b"k"), {}),
    }
    for name, (record, summary) in lists.items():
        _all_refuse(counted, "list: contradicts", name, _list_readers(avro_file(MANIFEST_LIST, [record]), summary))


def _real(bench: Bench) -> list[tuple[str, bytes, Callable[[bytes], Iterator[Callable[[], Any]]]]]:
    """The real manifest lists and manifests of the current snapshot, with what reads them as the level above says."""
    snapshot = bench.snapshot(-1)
    listed = manifest_lists.manifests_of(bench.stores, snapshot)
    assert listed.path is not None and len({entry.content for entry in listed.entries}) == 2

    def list_readers(data: bytes) -> Iterator[Callable[[], Any]]:
        for reader in LIST_READERS:
            yield lambda reader=reader: reader(Shelf({str(snapshot.manifest_list): data}), snapshot)

    found = [("list", bench.stores.read(listed.path), list_readers)]
    for number, entry in enumerate(listed.entries):
        data = bench.stores.read(entry.manifest_path)
        found.append(
            (f"manifest {number}", data, lambda data, entry=entry: _manifest_readers(data, entry)),  # type: ignore[misc]
        )
    return found


def test_every_cut_of_real_files_is_noticed(bench: Bench, counted: Counted) -> None:
    for name, data, readers in _real(bench):
        ends = range(len(data) - 1, -1, -7)
        for end in ends:
            for reader in readers(data[:end]):
                with pytest.raises(UnreadableMetadata):
                    reader()
        counted.add("avro: cuts", f"{len(ends)} cuts of a real {name}", "UnreadableMetadata each")
        for case, damage in {"empty": b"", "twice": data * 2, "a tail": data + bytes(8)}.items():
            _all_refuse(counted, "avro: cuts", f"real {name}, {case}", readers(damage))


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Some blows to a file: flips, cuts, insertions, blocks doubled or taken out."""
    blows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["flip", "cut", "insert", "double", "drop", "zero"]),
                st.integers(0, 2**16 - 1),
                st.integers(1, 255),
                st.integers(1, 64),
            ),
            min_size=1,
            max_size=4,
        )
    )

    def strike(data: bytes) -> bytes:
        for kind, where, byte, length in blows:
            at = where * len(data) >> 16
            if kind == "flip" and data:
                data = data[:at] + bytes([data[at] ^ byte]) + data[at + 1 :]
            elif kind == "cut":
                data = data[:at]
            elif kind == "insert":
                data = data[:at] + bytes([byte]) * length + data[at:]
            elif kind == "double":
                data = data[: at + length] + data[at:]
            elif kind == "drop":
                data = data[:at] + data[at + length :]
            else:
                data = data[:at] + bytes(min(length, len(data) - at)) + data[at + length :]
        return data

    return strike


@examples(250)
@given(strike=damages())
def test_fuzz_no_reader_fails_but_with_our_errors(bench: Bench, strike: Callable[[bytes], bytes]) -> None:
    """A file that a blow left readable has the entries that the level above counts; only their bytes may differ."""
    for name, data, readers in _real_once(bench):
        struck = strike(data)
        for reader in readers(struck):
            try:
                reader()
            except LifecycleError as error:
                _require_clear(name, error)
            else:
                assert name == "list" or len(struck) == len(data)
    plain = _JSON[id(bench)]
    for packed, place in ((plain, "v1.metadata.json"), (gzip.compress(plain, 1), "v1.gz.metadata.json")):
        try:
            parse_table_metadata(strike(packed), place)
        except LifecycleError as error:
            _require_clear(place, error)


_REAL: dict[int, Any] = {}
_JSON: dict[int, bytes] = {}


def _real_once(bench: Bench) -> Any:
    if id(bench) not in _REAL:
        _REAL[id(bench)], _JSON[id(bench)] = _real(bench), json.dumps(bench.document).encode()
    return _REAL[id(bench)]


# --- names ------------------------------------------------------------------------------------------------------------

IDENTIFIERS = (
    "",
    ".",
    "..",
    "t",
    "db.",
    ".t",
    "db..t",
    "db.t;DROP TABLE iceberg_tables",
    "db.t'; DROP TABLE iceberg_tables; --",
    'db.t"; DROP SCHEMA lifecycle CASCADE; --',
    "db.t' OR '1'='1",
    "db.%",
    "db.*",
    "db._",
    "db.`t`",
    "`db`.`t`",
    "db.t/**/UNION/**/SELECT/**/1",
    "db.t\n",
    "db.t ",
    " db.t",
    "DB.T",
    "db.t\0",
    "db\0.t",
    "db.\ud800",
    "db.ť",
    "db.../../etc",
    "db.%(name)s",
    "db.:name",
    "db.{name}",
    "db.$1",
    f"db.{LONG}",
    "db.t" + "\u202e",
)


def test_names_are_never_sql(bench: Bench, counted: Counted) -> None:
    lifecycle = bench.lifecycle
    rows = _rows_of_catalog(lifecycle)
    for name in IDENTIFIERS:
        counted.refused("names: table", name, lambda name=name: lifecycle.snapshot_history(name))
    for name in IDENTIFIERS[::8]:
        counted.refused("names: plan a table", name, lambda name=name: lifecycle.plan_expiration(name))
    steps: dict[str, Callable[[str], object]] = {
        "plan": lifecycle.plan,
        "scan": lifecycle.scan,
        "hold": lifecycle.release,
        "thaw": lifecycle.thaw_files,
        "close": lambda name: lifecycle.close_plan(name, who="w", why="y"),
        "approve": lambda name: lifecycle.approve(name, who="w", why="y"),
    }
    for step, call in steps.items():
        for name in ("'; DROP TABLE lifecycle.plans; --", "a\0b", "\ud800", "", LONG):
            counted.refused(f"names: {step}", name, lambda call=call, name=name: call(name))
    for case, call in {
        "a tag with a NUL": lambda: lifecycle.tag("db.t", "a\0b", bench.snapshot(0).snapshot_id),
        "a tag's reason with a NUL": lambda: lifecycle.tag("db.t", "x", bench.snapshot(0).snapshot_id, why="a\0b"),
        "a hold's owner with a NUL": lambda: lifecycle.hold("db.t", "a\0b", "reason"),
        "a hold's reason with a surrogate": lambda: lifecycle.hold("db.t", "owner", "\ud800"),
        "a hold of a snapshot that is none": lambda: lifecycle.hold("db.t", "o", "r", snapshot_ids=[2**70]),
        "a pause with a NUL": lambda: lifecycle.pause("db.t", who="a\0b", why="y"),
        "a heartbeat with a NUL": lambda: lifecycle.writing("db.t", "w\0").__enter__(),
        "a tag kept for no time": lambda: lifecycle.tag("db.t", "x", bench.snapshot(0).snapshot_id, "0d"),
        "a tag kept for ages": lambda: lifecycle.tag("db.t", "x", bench.snapshot(0).snapshot_id, f"{10**30}y"),
        "a snapshot of 2^70": lambda: lifecycle.tag("db.t", "x", 2**70),
    }.items():
        counted.refused("names: texts", case, call)
    for path in ("", "\0", LONG, "'; DROP", "../../etc/passwd", "gopher://x"):
        counted.run("names: explain", path, lambda path=path: f"passed over: {lifecycle.explain('db.t', path).verdict}")
    assert _rows_of_catalog(lifecycle) == rows
    assert bench.document["refs"].keys() == json.loads(bench.stores.read(bench.pointer))["refs"].keys()


def test_statements_other_than_queries_are_refused(bench: Bench, counted: Counted) -> None:
    lifecycle = bench.lifecycle
    rows, before = _rows_of_catalog(lifecycle), _tree(*bench.watched)
    live = lifecycle.config.catalogs.live.name
    for sql in (
        "DROP TABLE db.t",
        f"DROP TABLE {live}.db.t PURGE",
        f"DELETE FROM {live}.db.t",
        f"INSERT INTO {live}.db.t VALUES (1)",
        f"CALL {live}.system.expire_snapshots('db.t')",
        f"CALL {live}.system.remove_orphan_files(table => 'db.t')",
        f"ALTER TABLE {live}.db.t SET TBLPROPERTIES ('gc.enabled' = 'true')",
        f"SELECT 1; DROP TABLE {live}.db.t",
        f"/* */ DROP TABLE {live}.db.t",
        f"EXPLAIN EXTENDED DROP TABLE {live}.db.t",
        "SELECT * FROM db.t WHERE id =",
        "SELECT * FROM db.`t",
        "SELECT '",
        "SELECT /* 1",
        "",
        ";",
        "\0",
        "SELECT * FROM db.t FOR TAG 'x' FOR TAG 'y'",
        "SELECT * FROM db.t FOR VERSION AS OF 99999999999999999999999",
        "SELECT * FROM db.t FOR VERSION AS OF 1",
        "SELECT * FROM db.t FOR TAG 'a\0b'",
        "SELECT * FROM db.t FOR TIMESTAMP AS OF 'yesterday'",
        "SELECT * FROM db.none",
        "TAG SNAPSHOT 1 OF db.t AS 'x'",
        "TAG SNAPSHOT 1 OF db.t AS 'x' WITH RETENTION -1 DAYS",
        "TAG SNAPSHOT 99999999999999999999999 OF db.t AS 'x'",
        "(" * 3_000,
    ):
        counted.refused("names: query", sql[:80], lambda sql=sql: lifecycle.query(sql).collect())  # type: ignore[union-attr]
    assert _rows_of_catalog(lifecycle) == rows and _tree(*bench.watched) == before


def _rows_of_catalog(lifecycle: Lifecycle) -> list[Any]:
    with lifecycle.operations.engine.connect() as connection:
        found = connection.execute(
            text("SELECT * FROM iceberg_tables WHERE table_namespace <> 'lifecycle' ORDER BY 1, 2, 3")
        )
        return [tuple(row) for row in found]


# --- whole steps on hostile metadata ----------------------------------------------------------------------------------


def _oldest(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """The oldest snapshot, which expires, says this; `_` stands for `-`."""

    def change(document: dict[str, Any]) -> None:
        document["snapshots"][0].update({key.replace("_", "-"): value for key, value in fields.items()})

    return change


def test_expiration_of_a_table_whose_metadata_points_elsewhere(bench: Bench, counted: Counted) -> None:
    """Whole walks: plan, commit, delete."""
    other = bench.lifecycle.resources.live_catalog.entry("db.other").metadata_location
    foreign = json.loads(bench.stores.read(other))
    current = next(
        s["manifest-list"]
        for s in bench.document["snapshots"]
        if s["snapshot-id"] == bench.document["current-snapshot-id"]
    )
    folder, _, name = current.rpartition("/")
    outside = f"file://{bench.home.parent}/outside"
    victim = f"{outside}/victim.parquet"
    statistics = {"snapshot-id": bench.document["snapshots"][0]["snapshot-id"], "file-size-in-bytes": 4}
    statistics |= {"file-footer-size-in-bytes": 4, "blob-metadata": []}
    theirs = {"manifest_list": foreign["snapshots"][-1]["manifest-list"], "summary": {"operation": "append"}}
    walks: dict[str, Callable[[dict[str, Any]], object]] = {
        "an expired snapshot lists another table's manifests": _oldest(**theirs),
        "an expired snapshot has another table's list, by ..": _oldest(
            **{**theirs, "manifest_list": f"{bench.location}/../other/metadata/{_name(theirs['manifest_list'])}"}
        ),
        "an expired snapshot has the kept one's list, by ..": _oldest(
            manifest_list=f"{folder}/../metadata/{name}", summary={"operation": "append"}
        ),
        "an expired snapshot has the kept one's list, as file:/": _oldest(
            manifest_list=f"FILE:{local(current)}", summary={"operation": "append"}
        ),
        "statistics of an expired snapshot are another table's": _put(
            "statistics", value=[{**statistics, "statistics-path": foreign["snapshots"][-1]["manifest-list"]}]
        ),
        "statistics of an expired snapshot are outside": _put(
            "statistics", value=[{**statistics, "statistics-path": victim}]
        ),
        "statistics of an expired snapshot are a live data file": _put(
            "statistics", value=[{**statistics, "statistics-path": f"file://{sorted(bench.reached)[0]}"}]
        ),
        "partition statistics by ..": _put(
            "partition-statistics",
            value=[{**statistics, "statistics-path": f"{bench.location}/../../../../outside/victim.parquet"}],
        ),
        "the location is its parent": _put("location", value=bench.location.rpartition("/")[0]),
        "the location is the root": _put("location", value="file:///"),
        "data belongs outside, where nothing of the table is": _put("properties", "write.data.path", value=outside),
    }
    for case, change in walks.items():
        with bench.hostile(bench.changed(change)):
            counted.run("walk: expiration", case, bench.walk)


def _name(path: Any) -> str:
    return str(path).rpartition("/")[2]


def test_plans_of_tables_with_hostile_metadata(bench: Bench, counted: Counted) -> None:
    """Plan, and what the commit and the deletion would do."""

    names = {
        "a newline": f"{bench.location}/metadata/a\nb.avro",
        "quotes": f"{bench.location}/metadata/'\"`;--.avro",
        "a NUL": f"{bench.location}/metadata/a\0b.avro",
        "a lone surrogate": f"{bench.location}/metadata/\ud800.avro",
        "10 KB": f"{bench.location}/metadata/{LONG}",
        "1 MB": f"{bench.location}/metadata/{LONG * 100}",
        "percent signs": f"{bench.location}/metadata/%2e%2e%2f.avro",
        "a scheme nobody knows": "gopher://host/list.avro",
        "another host": "file://elsewhere/list.avro",
        "no scheme and no slash": "metadata/list.avro",
        "a bucket that is not a name": "s3://",
        "a folder": f"{bench.location}/metadata",
        "a data file": f"file://{next(p for p in sorted(bench.reached) if p.suffix == '.parquet')}",
        "what never ends": "/dev/zero/x",
    }
    for case, path in names.items():
        with bench.hostile(bench.changed(_oldest(manifest_list=path))):
            counted.refused("plan: manifest list", case, bench.plan)
    first, last = (bench.document["snapshots"][at]["snapshot-id"] for at in (0, -1))
    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "a snapshot of the year 292,278,994": _oldest(timestamp_ms=2**63 - 1),
        "a snapshot of before the epoch": _oldest(timestamp_ms=-(2**62)),
        "a snapshot of the year 0": _put("snapshots", 1, "timestamp-ms", value=-62_200_000_000_000),
        "all snapshots at one instant": lambda d: [s.update({"timestamp-ms": 1}) for s in d["snapshots"]],
        "a log of the far future": _put("snapshot-log", 0, "timestamp-ms", value=2**63 - 1),
        "a log that goes back in time": lambda d: d["snapshot-log"].reverse(),
        "a log of snapshots that are not there": _put(
            "snapshot-log", value=[{"timestamp-ms": 1, "snapshot-id": 4711 + number} for number in range(3)]
        ),
        "no log": _put("snapshot-log", value=[]),
        "a snapshot that is its own parent": _oldest(parent_snapshot_id=first),
        "parents in a circle": _oldest(parent_snapshot_id=last),
        "a parent that is not there": _oldest(parent_snapshot_id=4711),
        "-1 as a snapshot's id": lambda d: (_oldest(snapshot_id=-1)(d), d["snapshot-log"].pop(0)),
        "a ref to nowhere": _put("refs", "gone", value={"snapshot-id": 4711, "type": "tag"}),
        "a tag that never ends": _put(
            "refs", "t", value={"snapshot-id": first, "type": "tag", "max-ref-age-ms": 2**63 - 1}
        ),
        "a tag of negative age": _put("refs", "t", value={"snapshot-id": first, "type": "tag", "max-ref-age-ms": -1}),
        "a branch that keeps -1 snapshots": _put(
            "refs", "b", value={"snapshot-id": first, "type": "branch", "min-snapshots-to-keep": -1}
        ),
        "a branch that keeps 2^31 snapshots": _put(
            "refs", "b", value={"snapshot-id": first, "type": "branch", "min-snapshots-to-keep": 2**31}
        ),
        "a ref with a newline and quotes": _put("refs", "a\n'\"`;DROP", value={"snapshot-id": first, "type": "tag"}),
        "a ref with a NUL": _put("refs", "a\0b", value={"snapshot-id": first, "type": "tag", "max-ref-age-ms": 1}),
        "a ref of 10 KB": _put("refs", LONG, value={"snapshot-id": first, "type": "tag"}),
        "gc.enabled=no": _put("properties", "gc.enabled", value="no"),
        "gc.enabled with spaces": _put("properties", "gc.enabled", value=" true "),
        "an encryption key": _put("properties", "encryption.key-id", value="k"),
        "encryption keys": _put("encryption-keys", value=[{"key-id": "k"}]),
        "a snapshot with a key": _oldest(key_id="k"),
        "10^30 data files": _oldest(summary={"operation": "append", "total-data-files": "1" + "0" * 30}),
        "-7 data files": _oldest(summary={"operation": "append", "total-data-files": "-7"}),
        "NaN data files": _oldest(summary={"operation": "append", "total-data-files": "NaN"}),
        "an operation of 10 KB": _oldest(summary={"operation": LONG}),
        "another table's uuid": _put("table-uuid", value=str(uuid.uuid4())),
        "a relative location": _put("location", value="../../.."),
        "an empty location": _put("location", value=""),
        "a location with a NUL": _put("location", value=f"{bench.location}\0"),
        "a location of another scheme": _put("location", value="gopher://host/t"),
        "a data path that is the root": _put("properties", "write.data.path", value="file:///"),
        "retention properties that are no numbers": _put(
            "properties", "history.expire.min-snapshots-to-keep", value="many"
        ),
        "a metadata log of other tables' files": _put(
            "metadata-log", value=[{"timestamp-ms": 1, "metadata-file": "/etc/passwd"}]
        ),
    }
    for case, change in changes.items():
        with bench.hostile(bench.changed(change)):
            counted.run("plan: metadata", case, bench.plan)
    whole = json.dumps(bench.document).encode()
    cut = {
        "cut": whole[:-40],
        "empty": b"",
        "flipped": whole.replace(b'"snapshots"', b'"snapshotz"'),
        "NULs": bytes(99),
    }
    for case, data in cut.items():
        with bench.hostile(data):
            counted.refused("plan: metadata", f"{case} metadata file", bench.plan)
    for case, location in {
        "is missing": f"{bench.location}/metadata/none.metadata.json",
        "is a folder": f"{bench.location}/metadata",
        "has a scheme nobody knows": "gopher://x/v1.metadata.json",
        "is the table's data": names["a data file"],
        "is relative": "v1.metadata.json",
        "is empty": "",
    }.items():
        with bench.put_back():
            bench.point_at(location)
            counted.refused("plan: pointer", f"the catalog's pointer {case}", bench.plan)


def _blows(bench: Bench) -> dict[str, dict[Path, bytes | None]]:
    """What befalls the lists and manifests that the current snapshot is made of."""
    entry = bench.lifecycle.resources.live_catalog.entry("db.other")
    foreign = parse_table_metadata(bench.stores.read(entry.metadata_location), entry.metadata_location).snapshots[-1]
    listed = manifest_lists.manifests_of(bench.stores, foreign)
    assert foreign.manifest_list is not None
    ours = manifest_lists.manifests_of(bench.stores, bench.snapshot(-1))
    assert ours.path is not None

    def theirs_for(each: ManifestListEntry) -> str | None:
        # The likest: one without added files, of the same length to the byte and with the same counts, would pass.
        others = [their for their in listed.entries if their.added_files_count and their.content == each.content]
        others.sort(key=lambda their: abs(their.manifest_length - each.manifest_length))
        return others[0].manifest_path if others else None

    victims: dict[str, tuple[str, str | None]] = {"list": (ours.path, foreign.manifest_list)}
    victims |= {
        f"{'delete' if each.content else 'data'} manifest {number}": (each.manifest_path, theirs_for(each))
        for number, each in enumerate(ours.entries)
    }
    blows: dict[str, dict[Path, bytes | None]] = {}
    for name, (path, theirs) in victims.items():
        data = bench.stores.read(path)
        middle = len(data) * 3 // 4
        blows |= {
            f"{name} lost": {local(path): None},
            f"{name} empty": {local(path): b""},
            f"{name} cut": {local(path): data[:-20]},
            f"{name} cut at its header": {local(path): data[: data.index(data[-16:]) + 16]},
            f"{name} flipped": {local(path): data[:middle] + bytes([data[middle] ^ 0x5A]) + data[middle + 1 :]},
            f"{name} doubled": {local(path): data * 2},
            **({} if theirs is None else {f"{name} of another table": {local(path): bench.stores.read(theirs)}}),
            f"{name} is a data file": {local(path): b"PAR1" + bytes(len(data) - 4)},
        }
    return blows


def test_damaged_lists_and_manifests_stop_every_step(bench: Bench, counted: Counted) -> None:
    lifecycle = bench.lifecycle
    for case, files in _blows(bench).items():
        with bench.damaged(files):
            if "flipped" in case:
                # Avro has no checksum: a blow that leaves lengths and counts as recorded may pass; nothing goes by it.
                counted.run("plan: damaged", case, bench.plan)
            else:
                counted.refused("plan: damaged", case, bench.plan)
    blows = {case: files for case, files in _blows(bench).items() if case.endswith(("lost", "cut", "another table"))}
    for case, files in blows.items():
        with bench.damaged(files):
            counted.refused("scan: damaged", case, lambda: lifecycle.scan_orphans(bench.table))
    # What follows has read them before the damage, and checks that they exist and kept their lengths. Another
    # of the same length is not read, and nothing is lost by that: what they said is known.
    seen = {
        case: files
        for case, files in blows.items()
        if any(data is None or len(data) != path.stat().st_size for path, data in files.items())
    }
    # An orphan whose scan was made before the damage.
    with bench.put_back():
        _drop_in(bench, "data/orphan.parquet")
        scan = lifecycle.scan_orphans(bench.table)
        assert scan.summary.orphan_files == 1
        for case, files in seen.items():
            kept = {path: path.read_bytes() for path in files}
            for path, data in files.items():
                path.unlink() if data is None else path.write_bytes(data)
            counted.refused("orphans: damaged", case, lambda: lifecycle.delete_orphans(scan))
            for path, data in kept.items():
                path.write_bytes(data)
        assert lifecycle.delete_orphans(scan).deleted == 1
    # A plan that was committed before the damage.
    with bench.put_back():
        plan = lifecycle.plan_expiration(bench.table)
        lifecycle.commit_expiration(plan)
        there = _tree(bench.place)
        for case, files in seen.items():
            kept = {path: path.read_bytes() for path in files}
            for path, data in files.items():
                path.unlink() if data is None else path.write_bytes(data)
            counted.refused("deletion: damaged", case, lambda: lifecycle.delete_files(plan))
            for path, data in kept.items():
                path.write_bytes(data)
            assert _tree(bench.place) == there, case
        assert lifecycle.delete_files(plan).deleted == plan.summary.files > 0
    # Lost seals of a plan: nothing is guessed.
    for case, part in {"its list": "files", "its description": "plan.json"}.items():
        with bench.put_back():
            plan = lifecycle.plan_expiration(bench.table)
            lifecycle.commit_expiration(plan)
            folder = local(plan.files_location).parent
            # `seen` is the same list, with what the commit saw of each file.
            for where in [folder / "files", folder / "seen"] if part == "files" else [folder / part]:
                shutil.rmtree(where) if where.is_dir() else where.write_bytes(b'{"plan_id": "x"')
            counted.refused(
                "deletion: damaged", f"{case} of the plan", lambda plan=plan: lifecycle.delete_files(plan.plan_id)
            )
            lifecycle.close_plan(plan.plan_id, who="a test", why="its seal is damaged")


def _drop_in(bench: Bench, name: str) -> Path:
    path = bench.place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PAR1")
    make_old(path, timedelta(days=100))
    return path


def test_a_handoff_of_damaged_files_publishes_nothing(bench: Bench, counted: Counted, spark: SparkSession) -> None:
    config = bench.lifecycle.config
    policy = config.defaults.model_copy(
        update={"cold_tier": config.defaults.cold_tier.model_copy(update={"enabled": True})}
    )
    with Lifecycle.open(config.model_copy(update={"defaults": policy}), spark=spark) as lifecycle:
        plan = None
        for case, name in {"a manifest list": "snap-", "a manifest": "-m0.avro", "a data file": ".parquet"}.items():
            with bench.put_back():
                plan = lifecycle.plan_expiration(bench.table)
                doomed = [local(row.path) for row in plan.files().collect()]
                victim = next((path for path in doomed if name in path.name), None)
                if victim is None:
                    victim = next(path for path in sorted(bench.reached) if name in path.name)
                victim.write_bytes(victim.read_bytes()[:-30] if name != ".parquet" else b"")
                counted.refused("handoff: damaged", case, lambda plan=plan: lifecycle.hand_off(plan))
                assert lifecycle.resources.cold_catalog.tables() == []
                counted.refused(
                    "handoff: damaged", f"{case}, commit", lambda plan=plan: lifecycle.commit_expiration(plan)
                )
        assert plan is not None
        lifecycle.close_plan(plan, who="a test", why="over")


# --- hostile listings -------------------------------------------------------------------------------------------------

LISTED = "path string, last_modified timestamp, size_in_bytes bigint"


def test_listings_of_wrong_columns_are_refused(bench: Bench, counted: Counted) -> None:
    spark, old = bench.lifecycle.spark, datetime.now(UTC) - timedelta(days=100)
    naive = old.replace(tzinfo=None)
    shapes: dict[str, tuple[list[Any], str]] = {
        "a path that is null": ([(None, old, 4)], LISTED),
        "naive times": ([("/x", naive, 4)], "path string, last_modified timestamp_ntz, size_in_bytes bigint"),
        "times as texts": ([("/x", "yesterday", 4)], "path string, last_modified string, size_in_bytes bigint"),
        "times as numbers": ([("/x", 4711, 4)], "path string, last_modified bigint, size_in_bytes bigint"),
        "dates": ([("/x", old.date(), 4)], "path string, last_modified date, size_in_bytes bigint"),
        "sizes as texts": ([("/x", old, "4")], "path string, last_modified timestamp, size_in_bytes string"),
        "sizes as doubles": ([("/x", old, 4.5)], "path string, last_modified timestamp, size_in_bytes double"),
        "paths as bytes": ([(b"/x", old, 4)], "path binary, last_modified timestamp, size_in_bytes bigint"),
        "paths as numbers": ([(7, old, 4)], "path bigint, last_modified timestamp, size_in_bytes bigint"),
        "no path": ([(old, 4)], "last_modified timestamp, size_in_bytes bigint"),
        "no time": ([("/x", 4)], "path string, size_in_bytes bigint"),
        "no size": ([("/x", old)], "path string, last_modified timestamp"),
        "other names": ([("/x", old, 4)], "key string, modified timestamp, size bigint"),
    }
    for case, (rows, schema) in shapes.items():
        listing = spark.createDataFrame(rows, schema)
        counted.refused(
            "listing: shape", case, lambda listing=listing: bench.lifecycle.scan_orphans("db.t", listing=listing)
        )
    frame = spark.createDataFrame([("/x", old, 4)], LISTED)
    now = datetime.now(UTC)
    for case, arguments in {
        "begun in the future": {"listed_at": now + timedelta(days=1)},
        "begun at a naive time": {"listed_at": now.replace(tzinfo=None)},
        "of another location": {"location": "file:///etc"},
        "of the location's parent": {"location": f"{bench.location}/.."},
        "of the neighbor, by ..": {"location": f"{bench.location}/../other"},
        "of a relative location": {"location": "data"},
        "as of a naive now": {"now": now.replace(tzinfo=None)},
        "older than tomorrow": {"older_than": now + timedelta(days=1)},
        "older than a naive instant": {"older_than": now.replace(tzinfo=None)},
    }.items():
        counted.refused(
            "listing: arguments",
            case,
            lambda arguments=arguments: bench.lifecycle.scan_orphans("db.t", listing=frame, **arguments),
        )


def test_hostile_rows_of_a_listing_delete_nothing_that_is_not_an_orphan(bench: Bench, counted: Counted) -> None:
    lifecycle = bench.lifecycle
    old, soon = datetime.now(UTC) - timedelta(days=100), datetime.now(UTC) + timedelta(days=100)
    with bench.put_back():
        link = bench.place / "data" / "link"
        link.symlink_to(bench.home.parent / "outside")
        young = bench.place / "data" / "young.parquet"
        young.write_bytes(b"PAR1")
        orphans = [_drop_in(bench, f"data/{name}") for name in ("plain.parquet", "a\nb.parquet", "'\"`;--.parquet")]
        fixed = _drop_in(bench, "data/written-again.parquet")
        fixed.write_bytes(b"PAR1PAR1")
        data = next(path for path in sorted(bench.reached) if path.suffix == ".parquet")
        theirs = next(bench.home.rglob("db/other/data/*.parquet"))
        here = f"file://{bench.place}"
        live = {
            "a live file": f"file://{data}",
            "a live file, file:/": f"file:{data}",
            "a live file, FILE://": f"FILE://{data}",
            "a live file, no scheme": str(data),
            "a live file by //": f"{here}//data//{data.name}",
            "a live file by .": f"{here}/./data/{data.name}",
            "a live file by ..": f"{here}/data/../data/{data.name}",
        }
        hostile: dict[str, tuple[str, datetime | None, int | None]] = {
            **{case: (path, old, data.stat().st_size) for case, path in live.items()},
            "a live file, percent-encoded": (f"{here}/d%61ta/{data.name}", old, 4),
            "a live file, %2F": (f"{here}/data%2F{data.name}", old, 4),
            "a live file in capitals": (f"{here}/data/{data.name.upper()}", old, 4),
            "a live file and a space": (f"{here}/data/{data.name} ", old, 4),
            "another table's file": (f"file://{theirs}", old, theirs.stat().st_size),
            "another table's file by ..": (f"{here}/../other/data/{theirs.name}", old, theirs.stat().st_size),
            "a file outside": (f"file://{bench.home.parent}/outside/victim.parquet", old, 4),
            "a file outside by ..": (f"{here}/../../../../outside/victim.parquet", old, 4),
            "a file outside, through a link": (f"{here}/data/link/victim.parquet", old, 4),
            "the link itself": (f"{here}/data/link", old, 4),
            "a file of the cold tier": (f"file://{bench.home}/cold/db/t/archived.parquet", old, 4),
            "a folder": (f"{here}/data", old, 4096),
            "a folder and a slash": (f"{here}/data/", old, 4096),
            "the table's own folder": (here, old, 4096),
            "nothing": ("", old, 4),
            "a slash": ("/", old, 4),
            "a relative path": (f"data/{data.name}", old, 4),
            "another scheme": (f"gopher://host{data}", old, 4),
            "another host": (f"file://elsewhere{data}", old, 4),
            "a bucket": (f"s3://bucket{data}", old, 4),
            "a young file said to be old": (f"file://{young}", old, 4),
            "a file that was written again": (f"file://{fixed}", old, 4),
            "a file of the future": (f"file://{orphans[0]}-1", soon, 4),
            "a file of no time": (f"file://{orphans[0]}-2", None, 4),
            "a file of no size": (f"file://{orphans[0]}-3", old, None),
            "a file of -1 bytes": (f"file://{orphans[0]}-4", old, -1),
            "a file of 2^63-1 bytes": (f"file://{orphans[0]}-5", old, 2**63 - 1),
            "a file of 1970": (f"file://{orphans[0]}-6", datetime(1970, 1, 1, tzinfo=UTC), 4),
            "a file that is not there": (f"{here}/data/none.parquet", old, 4),
            "a name of 300 bytes": (f"{here}/data/{LONG[:300]}", old, 4),
            "a name of 10 KB, among orphans": (f"{here}/data/{LONG}", old, 4),
        }
        times = {path: datetime.fromtimestamp(path.stat().st_mtime_ns // 1000 / 1e6, UTC) for path in orphans}
        rows = [*hostile.values(), *((f"file://{path}", times[path], 4) for path in orphans)]
        rows.append((f"file://{orphans[0]}", soon, 4))  # said twice: its youngest counts
        frame = lifecycle.spark.createDataFrame(rows, LISTED)
        scan = lifecycle.scan_orphans("db.t", listing=frame)
        report = lifecycle.delete_orphans(scan)
        gone = {row["path"] for row in report.files().collect() if row["outcome"] == "deleted"}
        assert not gone & {path for path, _, _ in hostile.values()}
        kept = {row["path"]: f"kept: {row['verdict']}" for row in scan.unreferenced().collect()}
        kept |= {row["path"]: f"{row['outcome']}: {row['reason']}" for row in report.files().collect()}
        for case, (path, _, _) in hostile.items():
            counted.add("listing: rows", case, kept.get(path, "left out: not the table's, or reachable"))
        assert young.exists() and fixed.exists() and data.exists() and link.is_symlink()
        # Said twice, once young: kept. The other two go, whatever their names.
        assert [path.exists() for path in orphans] == [True, False, False], kept
        link.unlink()
    for case, name in {"10 KB": LONG, "a NUL": "a\0b", "4,000 folders": "d/" * 4_000 + "f"}.items():
        with bench.put_back():
            frame = lifecycle.spark.createDataFrame([(f"file://{bench.place}/data/{name}", old, 4)], LISTED)

            def step(frame: Any = frame) -> str:
                found = lifecycle.scan_orphans("db.t", listing=frame)
                return f"passed over: {lifecycle.delete_orphans(found).deleted} deleted"

            counted.run("listing: names", case, step)
    # What was made by a scan of another table's files, or by nobody, is not a listing of this one.
    for case, scan_id in {"nobody's": "scan-0", "SQL": "'; DROP TABLE lifecycle.scans; --", "a NUL": "a\0b"}.items():
        counted.refused(
            "listing: names", f"a scan's id, {case}", lambda scan_id=scan_id: lifecycle.delete_orphans(scan_id)
        )


@pytest.mark.parametrize(
    "case",
    [
        "the sealed plans",
        "a folder of the sealed plans",
        "another table",
        "the root",
        "all tiers and the sealed plans",
        "the cold tier",
        "a folder in the cold tier",
    ],
)
def test_a_table_whose_folders_hold_other_tiers_deletes_nothing_of_them(
    bench: Bench, counted: Counted, case: str
) -> None:
    """`write.data.path` may name a folder that holds the cold tier, the sealed plans, or half the disk."""
    place = {
        "all tiers and the sealed plans": f"file://{bench.home}",
        "the cold tier": f"file://{bench.home}/cold",
        "a folder in the cold tier": f"file://{bench.home}/cold/db",
        "the sealed plans": bench.lifecycle.root,
        "a folder of the sealed plans": f"{bench.lifecycle.root}/plans",
        "another table": str(next(bench.home.rglob("db/other"))),
        "the root": "file:///",
    }[case]
    state = set(_tree(local(bench.lifecycle.root)))
    with bench.hostile(bench.changed(_put("properties", "write.data.path", value=place))):

        def step() -> str:
            scan = bench.lifecycle.scan_orphans(bench.table)
            return f"passed over: {bench.lifecycle.delete_orphans(scan).deleted} deleted"

        counted.run("orphans: folders", case, step)
        lost = {path for path in state if not path.exists() and "/index/" not in str(path)}
        assert not lost, f"{case}: sealed files were deleted: {sorted(lost)[:3]}"


# --- sealed lists with hostile paths ----------------------------------------------------------------------------------


def test_a_sealed_list_with_hostile_paths_deletes_nothing(bench: Bench, counted: Counted) -> None:
    """Whatever a sealed list says: the final check uses the place of each file, and what the table reaches now."""
    with bench.put_back():
        world = bench.world
        link = bench.place / "data" / "link"
        link.symlink_to(bench.home.parent / "outside")
        inner = bench.place / "data" / "folder-link"
        inner.symlink_to(bench.home / "cold" / "db")
        reached = sorted(bench.reached)
        here = f"file://{bench.place}"
        theirs = next(bench.home.rglob("db/other/data/*.parquet"))
        hostile = {
            **{f"reachable {number}": f"file://{path}" for number, path in enumerate(reached)},
            "reachable, no scheme": str(reached[0]),
            "reachable, //": f"{here}//{reached[0].relative_to(bench.place)}",
            "reachable, ..": f"{here}/data/../{reached[0].relative_to(bench.place)}",
            "its sidecar": f"file://{reached[0].parent}/.{reached[0].name}.crc",
            "the current metadata file": bench.pointer,
            "another table's data": f"file://{theirs}",
            "another table's data, ..": f"{here}/../other/data/{theirs.name}",
            "outside": f"file://{bench.home.parent}/outside/victim.parquet",
            "outside, ..": f"{here}/../../../../outside/victim.parquet",
            "outside, through a link": f"{here}/data/link/victim.parquet",
            "cold, through a link": f"{here}/data/folder-link/t/archived.parquet",
            "the cold tier": f"file://{bench.home}/cold/db/t/archived.parquet",
            "a sealed plan": f"{bench.lifecycle.root}/plans/x",
            "/etc/passwd": "/etc/passwd",
            "the root": "/",
            "nothing": "",
            "a dot": ".",
            "relative": "data/x.parquet",
            "a folder": f"{here}/data",
            "a folder and a slash": f"{here}/data/",
            "the table's folder": here,
            "another bucket": "s3://other-bucket/key",
            "another bucket, ..": "s3a://other-bucket/../key",
            "another scheme": "gopher://host/key",
            "another host": f"file://elsewhere{reached[0]}",
            "a name of 10 KB": f"{here}/data/{LONG}",
            "a name with a NUL": f"{here}/data/a\0b",
            "a NUL behind a live file": f"file://{reached[0]}\0",
            "percent signs": f"{here}/%2e%2e/other/data/{theirs.name}",
            "a newline behind a live file": f"file://{reached[0]}\n",
            "a space behind a live file": f"file://{reached[0]} ",
        }
        for kind in ("expiration", "orphans"):
            job = world.job_of(bench.table, [(path, "data") for path in hostile.values()], kind)
            before = _tree(*bench.watched)
            report = world.delete(job)
            found = {row["path"]: f"{row['outcome']}: {row['reason']}" for row in report.files().collect()}
            assert report.deleted == 0, {path: said for path, said in found.items() if said.startswith("deleted")}
            assert before.keys() <= _tree(*bench.watched).keys()
            for case, path in hostile.items():
                counted.add(f"job: {kind}", case, found[path])
        # One that is an orphan, so that the job is known to delete at all.
        orphan = _drop_in(bench, "data/orphan.parquet")
        assert (
            outcomes(world.delete(world.job_of(bench.table, [(f"file://{orphan}", "data")])))[orphan.name][0]
            == "deleted"
        )
        link.unlink()
        inner.unlink()


# --- secrets ----------------------------------------------------------------------------------------------------------


def _everything_said(error: BaseException) -> str:
    """An error's text, its repr, and those of whatever led to it."""
    said, seen = [], set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        said += [str(one), repr(one), repr(getattr(one, "__dict__", ""))]
        todo.append(one.__cause__)
        if not one.__suppress_context__:
            todo.append(one.__context__)
    return "\n".join(said)


def _quiet(error: BaseException) -> None:
    said = _everything_said(error)
    for spelt in (SECRET, "hush-hush", "AKIAHUSH"):
        assert spelt not in said, said


def _address(password: str = "hush-hush", query: str = "", host: str = "127.0.0.1:1") -> str:
    return f"postgresql+psycopg2://artemis:{password}@{host}/artemis{query}"


def test_no_error_shows_a_secret(
    bench: Bench, counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = bench.lifecycle.config.operations.uri
    assert uri is not None
    wrong_password = uri.replace("://", "://", 1).partition("@")
    with_wrong = f"postgresql+psycopg2://nobody:hush-hush@{wrong_password[2]}"
    quoted = "hush-hush%2F%2B%2541+x"
    keys = {"s3.access-key-id": "AKIAHUSH", "s3.secret-access-key": SECRET, "s3.session-token": SECRET}

    def s3(endpoint: str) -> Stores:
        catalog = Catalog(
            name="c", warehouse="s3://b/w", properties={**keys, "s3.endpoint": endpoint, "s3.region": "x"}
        )
        return Stores(replace(StoreSettings.from_catalog(catalog), attempts=1, deadline_seconds=1.0))

    unreachable = s3("http://127.0.0.1:1")
    calls: dict[str, Callable[[], object]] = {
        "Postgres that is not there": lambda: Operations.open(_address()),
        "Postgres, a quoted password": lambda: Operations.open(_address(quoted)),
        "Postgres, the password in the query": lambda: Operations.open(_address(query="?password=hush-hush")),
        "Postgres, a wrong password": lambda: Operations.open(with_wrong),
        "Postgres, a host that is none": lambda: Operations.open(_address(host="no.such.host.invalid:1")),
        "Postgres, an option that is none": lambda: Operations.open(_address(query="?sslmode=hush")),
        "Postgres, a port that is none": lambda: Operations.open(_address(host="127.0.0.1:port")),
        "another database": lambda: Operations.open("mysql://artemis:hush-hush@h/d"),
        "no database": lambda: Operations.open("nonsense://artemis:hush-hush@h/d"),
        "an address that is none": lambda: Operations.open("hush-hush"),
        "a catalog that is not there": lambda: CatalogReader(Catalog(name="c", uri=_address(), warehouse="/w")),
        "a catalog, the password in the query": lambda: CatalogReader(
            Catalog(name="c", uri=_address(query="?password=hush-hush"), warehouse="/w")
        ),
        "JDBC of another database": lambda: jdbc_url("mysql://artemis:hush-hush@h/d"),
        "JDBC over a socket": lambda: jdbc_url("postgresql+psycopg2://artemis:hush-hush@/d?host=/tmp"),
        "JDBC, the password in the query": lambda: jdbc_url("mysql://h/d?password=hush-hush"),
        "S3 that is not there, read": lambda: unreachable.read("s3://b/k"),
        "S3 that is not there, list": lambda: list(unreachable.list("s3://b/k")),
        "S3 that is not there, head": lambda: unreachable.head("s3://b/k"),
        "S3 that is not there, write": lambda: unreachable.write("s3://b/k", b"x"),
        "S3 with a password in its address": lambda: s3("http://u:hush-hush@127.0.0.1:1"),
        "S3 with an address that is none": lambda: s3("hush").read("s3://b/k"),
        "S3 with a flag that is none": lambda: StoreSettings.from_catalog(
            Catalog(name="c", properties={**keys, "s3.path-style-access": "perhaps"})
        ),
    }
    for case, call in calls.items():
        _quiet(counted.refused("secrets: errors", case, call))
    for store in (unreachable, unreachable.settings):
        assert SECRET not in repr(store) and SECRET not in str(store)
    outcome = unreachable.delete(["s3://b/k"], until=elapsed() + 1)
    assert SECRET not in repr(outcome)
    counted.add("secrets: errors", "S3 that is not there, delete", str(outcome[0].outcome))
    live = {"name": "live", "uri": _address(), "warehouse": "/w", "properties": keys}
    files: dict[str, Any] = {
        "equal names": {"catalogs": {"live": live, "cold": {**live, "name": "live"}}},
        "equal warehouses": {"catalogs": {"live": live, "cold": {**live, "name": "cold"}}},
        "an unknown key in a catalog": {"catalogs": {"live": {**live, "passwd": "hush-hush"}}},
        "an address that is a map": {"operations": {"uri": {"password": "hush-hush"}}},
        "an address that is a list": {"catalogs": {"live": {**live, "uri": [_address()]}}},
        "properties that are a list": {"catalogs": {"live": {**live, "properties": [SECRET]}}},
        "a property that is a map": {
            "catalogs": {"live": {**live, "properties": {"s3.secret-access-key": {"v": SECRET}}}}
        },
        "a policy that is none": {"catalogs": {"live": live}, "defaults": {"retention": {"window": "hush"}}},
        "an unknown section": {"catalogs": {"live": live}, "hush-hush-not": 1},
    }
    texts = {case: json.dumps(content) for case, content in files.items()}
    texts["a quote that does not end"] = f'operations:\n  uri: "{_address()}\n'
    texts["a tab"] = f"operations:\n\turi: {_address()}\n"
    texts["an address that is not there"] = json.dumps({"operations": {"uri": _address()}, "catalogs": {"live": live}})
    texts["a wrong S3 flag"] = json.dumps(
        {"catalogs": {"live": {**live, "uri": uri, "properties": {**keys, "s3.path-style-access": "hm"}}}}
    )
    for case, content in texts.items():
        written = tmp_path / "lifecycle.yaml"
        written.write_text(content)
        if case not in ("an address that is not there", "a wrong S3 flag"):
            error = counted.refused("secrets: yaml", case, lambda written=written: load_config(written, {}))
            if case != "an unknown section":
                _quiet(error)
        for options in ((), ("--json",)):
            monkeypatch.setattr(sys, "argv", ["artemis", "history", "db.t", *options, "-c", str(written)])
            with pytest.raises(SystemExit) as ended:
                cli.main()
            assert ended.value.code not in (0, None)
            said = "".join(capsys.readouterr())
            assert "Traceback" not in said
            if case != "an unknown section":
                assert "hush-hush" not in said and "AKIAHUSH" not in said, f"{case}: {said}"
            counted.add("secrets: cli", " ".join((case, *options)), " ".join(said.split()))


# --- the count --------------------------------------------------------------------------------------------------------


def test_at_least_two_hundred_cases_were_counted(counted: Counted, request: pytest.FixtureRequest) -> None:
    ran = {item.originalname for item in request.session.items if item.path == request.path}  # type: ignore[attr-defined]
    print("\n" + counted.table())
    add_lines("bad input: cases, each a clear error or passed over", counted.counts())
    if ran == {name for name in vars(sys.modules[__name__]) if name.startswith("test_")}:
        assert len(counted.rows) >= 200
