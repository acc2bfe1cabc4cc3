"""`artemis assess`: exact by an oracle that shares no code with it, and it changes nothing, wherever it is pointed."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sqlalchemy import create_engine, make_url

from artemis_lifecycle import Lifecycle, cli
from artemis_lifecycle.catalogs.settings import pyiceberg_catalog
from artemis_lifecycle.config.loading import config_of, load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.errors import BadInput, ConfigError, NoSuchTable
from artemis_lifecycle.fleet.assess import Assessment, TableAssessment, assess, lifecycle_yaml
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.storage.local.store import LocalStore
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.catalogs.test_looking import EVERYTHING
from artemis_lifecycle_tests.rest import homes
from artemis_lifecycle_tests.rest.homes import Home
from artemis_lifecycle_tests.rest.servers import seaweed

pytestmark = [
    pytest.mark.seconds,
    pytest.mark.filterwarnings("ignore:Delete operation did not match any records"),
]
SEED = os.environ["ARTEMIS_SEED"]
HOUR = timedelta(hours=1)
OLD = datetime.now(UTC) - timedelta(days=30)
FIGURES = [each.name for each in fields(TableAssessment)]


@dataclass
class Foreign:
    """Somebody's catalog: pyiceberg's tables in a database and a folder that this project never saw."""

    uri: str
    folder: Path
    catalog: SqlCatalog

    def table(self, name: str, **properties: str) -> Table:
        self.catalog.create_namespace_if_not_exists("db")
        return self.catalog.create_table(f"db.{name}", pa.schema([("id", pa.int64())]), properties=properties)

    def config(self, **sections: Any) -> LifecycleConfig:
        live = {"type": "sql", "name": "theirs", "uri": self.uri, "warehouse": f"file://{self.folder}"}
        return config_of({"catalogs": {"live": live}, **sections}, "The test")

    def sql(self, statement: str, **values: str) -> list[Any]:
        engine = create_engine(self.uri)
        with engine.begin() as connection:
            done = connection.exec_driver_sql(statement, values)
            rows = [tuple(row) for row in done] if done.returns_rows else []
        engine.dispose()
        return rows

    def login(self, rights: str) -> str:
        """The address of a new login with these rights alone."""
        name = f"looker_{uuid.uuid4().hex[:8]}"
        self.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'p@ss'; {rights.format(name)}")
        url = make_url(self.uri).set(username=name, password="p@ss")
        return url.render_as_string(hide_password=False)

    def everything(self) -> tuple[object, ...]:
        """All that a change would show in: the database's objects and rows; names, sizes, times and inodes of files."""
        files = sorted(self.folder.rglob("*"))
        stats = [(str(path), *path.stat()[:2], *path.stat()[6:7], path.stat().st_mtime_ns) for path in files]
        return tuple(self.sql(EVERYTHING)), tuple(stats)


@pytest.fixture
def foreign(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Foreign]:
    name, server = f"foreign_{uuid.uuid4().hex[:8]}", create_engine(postgres.uri("postgres"))
    with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    folder = tmp_path / "theirs"
    catalog = SqlCatalog("theirs", uri=postgres.uri(name), warehouse=f"file://{folder}")
    yield Foreign(postgres.uri(name), folder, catalog)
    catalog.close()
    with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    server.dispose()


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


# --- exactness --------------------------------------------------------------------------------------------------------


def random_history(table: Table, dice: random.Random) -> None:
    """Appends, overwrites, deletes by file, tags and branches, in any order."""
    for number in range(dice.randint(4, 12)):
        ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
        change = dice.choice(["append", "append", "overwrite", "delete", "tag", "branch"]) if ids else "append"
        if change == "append":
            table.append(rows(number))
        elif change == "overwrite":
            table.overwrite(rows(number, number))
        elif change == "delete":
            table.delete(f"id == {dice.randrange(number)}")
        elif change == "tag":
            table.manage_snapshots().create_tag(dice.choice(ids), f"tag{number}").commit()
        else:
            table.manage_snapshots().create_branch(dice.choice(ids), f"branch{number}").commit()


def kept_by_iceberg(table: Table, cutoff_ms: int) -> set[int]:
    """RemoveSnapshots by its documentation: what is young on a branch, each head, and what is young without a ref."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    kept, reached = set(), set()
    for ref in table.metadata.refs.values():
        kept.add(ref.snapshot_id)
        place, is_branch = by_id.get(ref.snapshot_id), str(ref.snapshot_ref_type).endswith("branch")
        reached.add(ref.snapshot_id)
        is_young = True
        while place is not None and is_branch:
            reached.add(place.snapshot_id)
            is_young &= place.timestamp_ms >= cutoff_ms
            kept |= {place.snapshot_id} if is_young else set()
            place = by_id.get(place.parent_snapshot_id or -1)
    return kept | {i for i, each in by_id.items() if i not in reached and each.timestamp_ms >= cutoff_ms}


def files_of(table: Table, ids: set[int]) -> dict[str, int]:
    """Everything that these snapshots reach, with its size, read by pyiceberg."""
    found: dict[str, int] = {}
    for snapshot in table.snapshots():
        if snapshot.snapshot_id not in ids:
            continue
        found[snapshot.manifest_list] = len(table.io.new_input(snapshot.manifest_list))
        for manifest in snapshot.manifests(table.io):
            found[manifest.manifest_path] = manifest.manifest_length
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                found[entry.data_file.file_path] = entry.data_file.file_size_in_bytes
    return found


@pytest.mark.parametrize("seed", range(4))
def test_what_expires_and_what_that_frees_is_counted_exactly(seed: int, foreign: Foreign) -> None:
    dice = random.Random(f"{SEED}:{seed}")
    expected: dict[str, dict[str, int]] = {}
    tables = [foreign.table(f"t{number}") for number in range(3)]
    for table in tables:
        random_history(table, dice)
    at = max(snapshot.timestamp_ms for table in tables for snapshot in table.snapshots()) - dice.choice([0, 0, 40])
    for table in tables:
        everything = {snapshot.snapshot_id for snapshot in table.snapshots()}
        kept = kept_by_iceberg(table, at)
        stays = files_of(table, kept)
        freeable = {path: size for path, size in files_of(table, everything - kept).items() if path not in stays}
        of_all = files_of(table, everything)
        expected[".".join(table.name())] = {
            "snapshots": len(everything),
            "snapshots_past_window": len(everything - kept),
            "files": len(of_all),
            "bytes": sum(of_all.values()),
            "files_freeable": len(freeable),
            "bytes_freeable": sum(freeable.values()),
            "manifests": len(table.current_snapshot().manifests(table.io)),
            "data_files": len([*table.scan().plan_files()]),
            "small_files": len([*table.scan().plan_files()]),
            "metadata_file_bytes": os.stat(table.metadata_location.removeprefix("file://")).st_size,
        }
    now = datetime.fromtimestamp(at / 1000, UTC) + HOUR
    config = foreign.config(
        defaults={"retention": {"rule": "iceberg"}}, tables={"*": {"retention": {"rule": "iceberg", "window": "1h"}}}
    )
    found = assess(config, now=now)
    assert {row.table: {name: getattr(row, name) for name in expected[row.table]} for row in found.tables} == expected
    assert all(row.error is None and not row.problems for row in found.tables)
    quick = assess(config, now=now, quick=True)
    known = ("snapshots", "snapshots_past_window", "metadata_file_bytes")
    assert {r.table: [getattr(r, n) for n in known] for r in quick.tables} == {
        name: [figures[n] for n in known] for name, figures in expected.items()
    }


def inventory(folder: Path, paths: list[str]) -> str:
    """The manifest of an S3 Inventory, begun now, of objects that are old."""
    bucket = paths[0].split("/")[2]
    objects = "".join(f'"{bucket}","{path.split("/", 3)[3]}","5","{OLD:%Y-%m-%dT%H:%M:%S.000Z}"\n' for path in paths)
    data = gzip.compress(objects.encode())
    (folder / "part.csv.gz").write_bytes(data)
    files = [{"key": "part.csv.gz", "size": len(data), "MD5checksum": hashlib.md5(data).hexdigest()}]
    schema = "Bucket, Key, Size, LastModifiedDate"
    said = {"sourceBucket": bucket, "destinationBucket": "arn:aws:s3:::any", "fileFormat": "CSV", "fileSchema": schema}
    began = {"creationTimestamp": str(int(datetime.now(UTC).timestamp() * 1000)), "files": files}
    (folder / "manifest.json").write_text(json.dumps(said | began))
    return str(folder / "manifest.json")


@contextmanager
def started(kind: str, folder: Path) -> Iterator[Home]:
    if kind != "rest":
        with homes.glue() if kind == "glue" else homes.hive(folder) as home:
            yield home
        return
    with seaweed(folder / "seaweed") as server:
        yield homes.of_rest("seaweed", server, folder)


@pytest.mark.parametrize("kind", ["rest", "glue", pytest.param("hive", marks=pytest.mark.nightly)])
def test_every_type_of_catalog_is_assessed_alike(kind: str, tmp_path: Path) -> None:
    with started(kind, tmp_path) as home:
        live = {**home.live, "name": "theirs"}
        config = config_of({"catalogs": {"live": live}, "defaults": {"retention": {"window": "0ms"}}}, "The test")
        other = pyiceberg_catalog(config.catalogs.live)
        other.create_namespace_if_not_exists("db")
        table = other.create_table("db.t", rows(1).schema)
        for number in range(3):
            table.overwrite(rows(number))
        current = {table.current_snapshot().snapshot_id}
        kept, every = files_of(table, current), files_of(table, {each.snapshot_id for each in table.snapshots()})
        gone = {path: size for path, size in every.items() if path not in kept}
        for pattern in ("db.t", "*"):
            (row,) = assess(config, pattern).tables
            assert (row.error, row.problems) == (None, ())
            assert (row.files, row.files_freeable, row.bytes_freeable) == (len(every), len(gone), sum(gone.values()))
        if kind == "glue":
            left = f"{table.location()}/data/left.parquet"
            with table.io.new_output(left).create() as file:
                file.write(b"12345")
            manifest = inventory(tmp_path, [left, *every, table.metadata_location])
            (row,) = assess(config, listing=manifest).tables
            assert (row.orphan_files, row.orphan_bytes, row.problems) == (1, 5, ())


def test_it_counts_what_the_planner_plans_by_the_default_rule(foreign: Foreign, tmp_path: Path) -> None:
    table = foreign.table("t")
    for number in range(6):
        (table.overwrite if number % 2 else table.append)(rows(number))
    now = datetime.now(UTC) + timedelta(days=31)
    tiers = {"live": {"name": "theirs", "uri": foreign.uri, "warehouse": str(foreign.folder)}}
    tiers["cold"] = {"uri": foreign.uri, "warehouse": str(tmp_path / "cold")}
    operations = {"uri": foreign.uri, "root": str(tmp_path / "state")}
    config = config_of({"catalogs": tiers, "operations": operations, "home": str(tmp_path)}, "The test")
    row = assess(config, "db.t", now=now).tables[0]
    with Lifecycle.open(config) as lifecycle:
        assert lifecycle.assess("db.*").tables[0].files == row.files
        summary = lifecycle.plan_expiration("db.t", now=now).summary
    assert (row.snapshots_past_window, row.files_freeable, row.bytes_freeable) == (
        summary.snapshots_expired,
        summary.files,
        summary.size_in_bytes,
    )
    assert summary.files > 0


# --- quick ------------------------------------------------------------------------------------------------------------


def test_quick_opens_metadata_files_alone_and_estimates_nothing(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        foreign.table(name).append(rows(1))
    opened: list[str] = []
    for method in ("read", "open", "read_range"):
        real: Callable[..., Any] = getattr(Stores, method)

        def noted(self: Stores, path: str, *args: Any, real: Callable[..., Any] = real) -> Any:
            opened.append(path)
            return real(self, path, *args)

        monkeypatch.setattr(Stores, method, noted)
    prices = {"classes": {"STANDARD": {"gb_month": 1}}}
    for row in assess(foreign.config(prices=prices), quick=True).tables:
        known = {name for name in FIGURES if getattr(row, name) not in (None, ())}
        told = {"table", "format_version", "snapshots", "snapshots_past_window", "metadata_file_bytes"}
        assert known == told
    assert len(opened) == 2 and all(path.endswith(".metadata.json") for path in opened)
    with pytest.raises(BadInput, match="quick"):
        assess(foreign.config(), listing="/nowhere", quick=True)


# --- it changes nothing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [True, False])
def test_it_needs_no_right_but_select_and_writes_nothing_anywhere(
    quick: bool, foreign: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = foreign.table("t")
    for number in range(3):
        table.overwrite(rows(number))
    listing = tmp_path / "listing.parquet"
    pq.write_table(listed(foreign.folder), listing)
    uri = foreign.login("GRANT SELECT ON iceberg_tables, iceberg_namespace_properties TO {}")
    monkeypatch.chdir(tmp_path)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a write, or something that only writers need")

    for kind in (Stores, LocalStore):
        for name in ("write", "delete", "remove", "copy", "put_stream", "archive", "thaw", "duplicate", "remove_empty"):
            monkeypatch.setattr(kind, name, refused, raising=False)
    monkeypatch.setattr(Operations, "open", refused)
    monkeypatch.setattr(EmbeddedPostgres, "start", refused)
    monkeypatch.setattr("artemis_lifecycle.spark.session.open_session", refused)
    before, here = foreign.everything(), sorted(tmp_path.rglob("*"))
    live = {"type": "sql", "name": "theirs", "uri": uri, "warehouse": f"file://{foreign.folder}"}
    config = config_of({"catalogs": {"live": live}, "defaults": {"retention": {"window": "0ms"}}}, "The test")
    found = assess(config, listing=None if quick else str(listing), quick=quick)
    assert found.tables[0].error is None and found.tables[0].problems == ()
    assert quick or (found.tables[0].files_freeable or 0) > 0
    assert foreign.everything() == before and sorted(tmp_path.rglob("*")) == here


def test_neither_spark_nor_dagster_is_loaded(foreign: Foreign, tmp_path: Path) -> None:
    foreign.table("t").append(rows(1))
    code = (
        "import sys; from artemis_lifecycle.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "assert not {'pyspark', 'dagster', 'py4j'} & sys.modules.keys()"
    )
    arguments = ["assess", "--uri", foreign.uri, "--catalog-name", "theirs", "--json"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ARTEMIS_")}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tables"][0]["table"] == "db.t"
    assert [*tmp_path.iterdir()] == [foreign.folder]


# --- orphans ----------------------------------------------------------------------------------------------------------


def listed(folder: Path, *, age: dict[str, datetime] | None = None) -> pa.Table:
    """A listing of all files, as old as OLD but for those whose name `age` has."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return pa.table(
        {
            "path": [f"file://{path}" for path in files],
            "last_modified": pa.array([(age or {}).get(path.name, OLD) for path in files], pa.timestamp("us", "UTC")),
            "size_in_bytes": [path.stat().st_size for path in files],
        }
    )


def place(table: Table, name: str, content: bytes = b"12345") -> Path:
    path = Path(table.location().removeprefix("file://")) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_candidate_is_old_was_listed_before_the_metadata_and_belongs_to_no_reader(
    foreign: Foreign, tmp_path: Path
) -> None:
    ours, theirs = foreign.table("ours"), foreign.table("theirs")
    for table in (ours, theirs):
        table.append(rows(1))
    inside = foreign.catalog.create_table("db.inside", ours.schema(), location=f"{ours.location()}/data/inside")
    inside.append(rows(1))
    place(ours, "data/old.parquet")
    place(ours, "data/young.parquet", b"1" * 100)
    place(ours, "data/after.parquet", b"1" * 200)
    place(ours, "_checkpoints/offset", b"1" * 400)
    place(ours, "metadata/artemis-receipts/receipt.md", b"1" * 800)
    place(inside, "data/theirs.parquet", b"1" * 1600)
    taken = place(ours, "data/added.parquet")
    pq.write_table(rows(5), taken)
    theirs.add_files([f"file://{taken}"])
    late = place(ours, "data/late.parquet")
    began = datetime.now(UTC)
    young = began - timedelta(days=6)
    table = listed(foreign.folder, age={"young.parquet": young, "after.parquet": began + timedelta(days=1)})
    # Committed after the listing: the metadata, which is read later, knows it.
    pq.write_table(rows(6), late)
    ours.add_files([f"file://{late}"])
    listing = tmp_path / "listing"
    listing.mkdir()
    pq.write_table(table, listing / "part.parquet")
    config = foreign.config()
    found = {row.table: row for row in assess(config, listing=str(listing)).tables}
    assert (found["db.ours"].orphan_files, found["db.ours"].orphan_bytes) == (1, 5)
    assert (found["db.inside"].orphan_files, found["db.inside"].orphan_bytes) == (1, 1600)
    assert (found["db.theirs"].orphan_files, found["db.theirs"].orphan_bytes) == (0, 0)
    # One table is asked for; all others are still readers.
    (alone,) = assess(config, "db.ours", listing=str(listing)).tables
    assert (alone.orphan_files, alone.orphan_bytes) == (1, 5)
    # Ages count from the listing.
    (earlier,) = assess(config, "db.ours", listing=str(listing), listed_at=OLD + timedelta(days=6)).tables
    assert earlier.orphan_files == 0
    without = assess(config)
    assert all(row.orphan_files is None and row.orphan_bytes is None for row in without.tables)
    assert "candidates, not a scan" in " ".join(assess(config, listing=str(listing)).sentences)


def test_orphans_are_unknown_where_a_reader_cannot_be_read_or_the_table_may_not_be_cleaned(
    foreign: Foreign, tmp_path: Path
) -> None:
    ours, broken = foreign.table("ours"), foreign.table("broken")
    kept = foreign.table("kept", **{"gc.enabled": "false"})
    for table in (ours, broken, kept):
        table.append(rows(1))
        place(table, "data/orphan.parquet")
    listing = tmp_path / "listing.parquet"
    pq.write_table(listed(foreign.folder), listing)
    by_name = {row.table: row for row in assess(foreign.config(), listing=str(listing)).tables}
    assert by_name["db.ours"].orphan_files == 1
    assert by_name["db.kept"].orphan_files is None and "gc.enabled" in " ".join(by_name["db.kept"].problems)
    Path(broken.current_snapshot().manifest_list.removeprefix("file://")).write_bytes(b"")
    (row,) = assess(foreign.config(), "db.ours", listing=str(listing)).tables
    assert row.orphan_files is None and "db.broken" in " ".join(row.problems)
    live = foreign.config().catalogs.live.model_dump(mode="json") | {"isolated": ["db.broken"]}
    (row,) = assess(config_of({"catalogs": {"live": live}}, "The test"), "db.ours", listing=str(listing)).tables
    assert row.orphan_files == 1


# --- risks ------------------------------------------------------------------------------------------------------------


def test_tables_at_risk_and_unreadable_ones_say_why_and_stop_no_other(foreign: Foreign) -> None:
    fit = foreign.table("fit")
    for number in range(2):
        fit.overwrite(rows(number))
    kept = foreign.table("kept", **{"gc.enabled": "false"})
    for number in range(2):
        kept.overwrite(rows(number))
    foreign.catalog.create_table("db.nested", fit.schema(), location=f"{fit.location()}/data")
    newer = foreign.table("newer")
    path = Path(newer.metadata_location.removeprefix("file://"))
    path.write_text(path.read_text().replace('"format-version":2', '"format-version":5'))
    gone = foreign.table("gone")
    Path(gone.metadata_location.removeprefix("file://")).unlink()
    config = foreign.config(defaults={"retention": {"window": "0ms"}})
    found = {row.table: row for row in assess(config).tables}
    assert (found["db.fit"].files_freeable or 0) > 0 and "db.nested" in found["db.fit"].problems[0]
    assert "db.fit" in found["db.nested"].problems[0]
    assert found["db.kept"].files_freeable == 0 and found["db.kept"].snapshots_past_window == 2
    assert "gc.enabled=false" in found["db.kept"].problems[0]
    for name, why in (("newer", "5"), ("gone", "")):
        row = found[f"db.{name}"]
        assert row.error is not None and why in row.error
        assert all(getattr(row, each) is None for each in FIGURES if each not in ("table", "problems", "error"))
    assert [row.table for row in assess(config, "db.f*").tables] == ["db.fit"]
    with pytest.raises(NoSuchTable):
        assess(config, "db.nothing*")
    with pytest.raises(ConfigError, match="--uri"):
        assess(LifecycleConfig())


# --- lifecycle.yaml ---------------------------------------------------------------------------------------------------


def test_the_lifecycle_yaml_is_accepted_and_has_no_secret(
    foreign: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign.table("t").append(rows(1))
    ((location,),) = foreign.sql("SELECT metadata_location FROM iceberg_tables")
    names = ["${HOME}", "a: b", "x\n# y: {}", "*", "- 1", "dot.ted"]
    for name in names:
        foreign.sql(
            "INSERT INTO iceberg_tables VALUES ('theirs', 'db', %(name)s, %(location)s, NULL, 'TABLE')",
            name=name,
            location=location,
        )
    uri = foreign.login("GRANT SELECT ON iceberg_tables, iceberg_namespace_properties TO {}")
    properties = {"s3.secret-access-key": "hush", "s3.endpoint": "http://store$$:9000"}
    live = {
        "type": "sql",
        "name": "theirs",
        "uri": uri,
        "warehouse": f"file://{foreign.folder}",
        "properties": properties,
    }
    config = config_of({"catalogs": {"live": live}, "defaults": {"retention": {"window": "9d"}}}, "The test")
    file = tmp_path / "lifecycle.yaml"
    # They share one location, so that each is left out: of the first alone, they are not.
    for pattern, wanted in (("*", []), ("db.t", ["db.t"]), ("db.`dot.ted`", ["db.`dot.ted`"])):
        text = assess(config, pattern).lifecycle_yaml
        assert not any(secret in text for secret in ("p@ss", "p%40ss", "hush"))
        file.write_text(text)
        monkeypatch.setenv("LIVE_PASSWORD", "p%40ss")
        monkeypatch.setenv("LIVE_S3_SECRET_ACCESS_KEY", "hush")
        loaded = load_config(file)
        assert loaded.catalogs.live == config.catalogs.live
        assert loaded.defaults.retention.window == timedelta(days=9) and not loaded.defaults.cold_tier.enabled
        assert [*loaded.tables] == wanted
    assert assess(loaded, "db.t").tables[0].snapshots == 1


@pytest.mark.parametrize(
    ("uri", "written"),
    [
        ("postgresql+psycopg2://u:s3cr3t@h:1/d?a=b", "postgresql+psycopg2://u:${LIVE_PASSWORD}@h:1/d?a=b"),
        (
            "postgresql+psycopg2://u@h/d?password=s3cr3t&x=1",
            "postgresql+psycopg2://u@h/d?password=${LIVE_PASSWORD}&x=1",
        ),
        ("postgresql+psycopg2://h/$$d", "postgresql+psycopg2://h/$$$$d"),
        ("https://host/api?token=s3cr3t", "https://host/api?token=${LIVE_PASSWORD}"),
    ],
)
def test_no_spelling_of_an_address_gives_its_password_away(
    uri: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "rest" if uri.startswith("https") else "sql"
    config = config_of({"catalogs": {"live": {"type": kind, "name": "theirs", "uri": uri}}}, "The test")
    text = lifecycle_yaml(config, [], datetime.now(UTC))
    assert f"uri: {written}\n" in text and "s3cr3t" not in text
    monkeypatch.setenv("LIVE_PASSWORD", "s3cr3t")
    (tmp_path / "lifecycle.yaml").write_text(text)
    assert load_config(tmp_path / "lifecycle.yaml").catalogs.live.uri == uri


# --- terminal and page ------------------------------------------------------------------------------------------------


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.argv", ["artemis", "assess", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert not ended.value.code, said.err
    return said.out


def test_the_table_fits_a_terminal_and_json_and_page_have_the_same(
    foreign: Foreign, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("measurements_by_station", "b", "<script>alert(1)</script>"):
        table = foreign.table(name) if name[0] != "<" else foreign.table("c")
        for number in range(3):
            table.overwrite(rows(number))
    foreign.sql("UPDATE iceberg_tables SET table_name = '<script>alert(1)</script>' WHERE table_name = 'c'")
    listing, page = tmp_path / "listing.parquet", tmp_path / "report.html"
    pq.write_table(listed(foreign.folder), listing)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("artemis_lifecycle.cli.output.out.width", 80, raising=False)
    at = ["--uri", foreign.uri, "--catalog-name", "theirs", "--warehouse", str(foreign.folder), "--window", "1ms"]
    at += ["--gb-month", "0.023", "--listing", str(listing), "--html", str(page)]
    text = shown([*at, "db.m*"], capsys, monkeypatch)
    assert max(map(len, text.splitlines())) <= 80
    for head in (
        "table",
        "past window",
        "freeable",
        "small files",
        "manifests",
        "metadata",
        "orphan candidates",
        "USD/",
    ):
        assert all(word in text for word in head.split())
    assert "measurements_" in text and "┌" not in text.partition("\n")[2][:80]
    text = shown([*at, "--yaml", "lifecycle.yaml", "db.m*"], capsys, monkeypatch)
    login = "export LIVE_PASSWORD=…; then " if "${LIVE_PASSWORD}" in Path("lifecycle.yaml").read_text() else ""
    assert f"Next: {login}artemis doctor; then artemis plan db." in " ".join(text.split())
    found = json.loads(shown([*at, "--json"], capsys, monkeypatch))
    assert [*found["tables"][0]] == FIGURES and found["orphans_are"] == "candidates, not a scan"
    html = page.read_text()
    assert "<script>alert" not in html and "<svg" in html and "lifecycle.yaml" in html
    assert not re.search(r"(src|href|url)\s*[=(]", html) and "//cdn" not in html
    for row in found["tables"]:
        assert f"data-key='{row['bytes_freeable']}'" in html
    frame = Assessment(datetime.now(UTC), False, None, "", "USD", (TableAssessment("t"),), "").to_pandas()
    assert [*frame.columns] == FIGURES
