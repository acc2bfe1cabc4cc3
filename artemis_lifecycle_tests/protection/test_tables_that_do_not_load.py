"""A table that its catalog lists and cannot load stands for no other table of the catalog; and a catalog that does not
answer one question of a survey is silent in all of it."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.errors import OperationsUnavailable, UnreadableMetadata
from artemis_lifecycle.fleet.fleet import unread_readers
from artemis_lifecycle_tests import conftest, core_tables
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.rest.homes import glue

LATER = datetime.now(UTC) + timedelta(days=60)
POLICY = {
    "retention": {"window": "1d"},
    "deletion": {"grace": "0s"},
    "orphans": {"max_share": 1},
    "cold_tier": {"enabled": False},
}
_numbers = itertools.count(1)


class _Rest(BaseHTTPRequestHandler):
    """A REST catalog over a folder: `tables` has metadata files by name, or the status that loading them has."""

    tables: dict[str, str | int]

    def do_GET(self) -> None:
        listed = [{"namespace": ["db"], "name": name} for name in self.tables]
        answers: dict[str, object] = {
            "/v1/config": {"defaults": {}, "overrides": {}},
            "/v1/namespaces": {"namespaces": [] if "parent" in self.path else [["db"]]},
            "/v1/namespaces/db/tables": {"identifiers": listed},
            "/v1/namespaces/db/views": {"identifiers": []},
        }
        path, status = self.path.partition("?")[0], 200
        found = answers.get(path)
        if found is None:
            at = self.tables.get(path.rpartition("/")[2], 404)
            status = at if isinstance(at, int) else 200
            found = {"error": {"message": path, "type": "No", "code": status}}
            if isinstance(at, str):
                metadata = json.loads(Path(at.removeprefix("file://")).read_text())
                found = {"metadata-location": at, "metadata": metadata}
        content = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Finance:
    """A catalog of another kind, and the tables that an engine elsewhere writes for it. `said`: as in lifecycle.yaml.
    `break_` is what happens to one table of it."""

    name: str
    spark: SparkSession
    folder: Path
    elsewhere: str
    commit: Callable[[str, str], None]
    break_: Callable[[str], None]
    said: dict[str, Any] = field(default_factory=dict)

    def make(self, table: str) -> None:
        core_tables.sql(self.spark, f"CREATE TABLE {self.elsewhere}.db.{table} (id int) USING iceberg")
        core_tables.sql(self.spark, f"INSERT INTO {self.elsewhere}.db.{table} VALUES (7)")
        self.commit(table, self.pointer(table))

    def pointer(self, table: str) -> str:
        """The newest metadata file, under a name that is written once, as catalogs give it."""
        metadata = self.folder / "db" / table / "metadata"
        newest = max(metadata.glob("v*.metadata.json"), key=lambda each: each.stat().st_mtime_ns)
        made = newest.with_name(f"{int(newest.name[1:].partition('.')[0]):05d}-{uuid.uuid4()}.metadata.json")
        shutil.copy(newest, made)
        return f"file://{made}"

    def take_up(self, table: str, paths: list[str]) -> None:
        take_up(self.spark, f"{self.elsewhere}.db.{table}", paths)
        self.commit(table, self.pointer(table))


def take_up(spark: SparkSession, table: str, paths: list[str]) -> None:
    """add_files."""
    jvm: Any = spark._jvm
    loaded = core_tables.java_table(spark, table)
    change = loaded.newAppend()
    for path in paths:
        built = jvm.org.apache.iceberg.DataFiles.builder(loaded.spec())
        size = Path(path.removeprefix("file:")).stat().st_size
        built = built.withPath(path).withFileSizeInBytes(size).withRecordCount(1).withFormat("parquet")
        change = change.appendFile(built.build())
    change.commit()


@contextmanager
def in_glue(made: Finance) -> Iterator[Finance]:
    """A table breaks as a rule of the bucket, or a person, breaks it: Glue names a metadata file that is gone."""
    with glue() as home:
        properties = home.live["properties"]
        client = boto3.client(
            "glue",
            endpoint_url=properties["glue.endpoint"],
            region_name="us-east-1",
            aws_access_key_id=properties["client.access-key-id"],
            aws_secret_access_key=properties["client.secret-access-key"],
        )
        client.create_database(DatabaseInput={"Name": "db"})
        pointers: dict[str, str] = {}

        def commit(table: str, at: str) -> None:
            parameters = {"table_type": "ICEBERG", "metadata_location": at}
            if table in pointers:
                parameters["previous_metadata_location"] = pointers[table]
            row = {"Name": table, "TableType": "EXTERNAL_TABLE", "Parameters": parameters}
            if table in pointers:
                version = client.get_table(DatabaseName="db", Name=table)["Table"]["VersionId"]
                client.update_table(DatabaseName="db", TableInput=row, VersionId=version)
            else:
                client.create_table(DatabaseName="db", TableInput=row)
            pointers[table] = at

        said = {**home.live, "warehouse": f"file://{made.folder}"}
        lose = lambda table: Path(pointers[table].removeprefix("file://")).unlink()  # noqa: E731
        yield replace(made, commit=commit, break_=lose, said=said)


@contextmanager
def in_rest(made: Finance, status: int) -> Iterator[Finance]:
    """A table breaks as a server breaks it, which answers `status` for that one."""
    tables: dict[str, str | int] = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Rest", (_Rest,), {"tables": tables})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}", "warehouse": f"file://{made.folder}"}
        fail = lambda table: tables.__setitem__(table, status)  # noqa: E731
        yield replace(made, commit=tables.__setitem__, break_=fail, said=said)
        server.shutdown()


@pytest.fixture(params=["glue", "rest 404", "rest 500"])
def finance(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Finance]:
    elsewhere, folder = f"elsewhere_{next(_numbers)}", tmp_path / "finance"
    for key, value in {"type": "hadoop", "warehouse": f"file://{folder}", "cache-enabled": "false"}.items():
        spark.conf.set(f"spark.sql.catalog.{elsewhere}.{key}", value)
    spark.conf.set(f"spark.sql.catalog.{elsewhere}", "org.apache.iceberg.spark.SparkCatalog")
    core_tables.sql(spark, f"CREATE NAMESPACE IF NOT EXISTS {elsewhere}.db")
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    made = Finance(f"finance_{next(_numbers)}", spark, folder, elsewhere, nothing, nothing)
    kind, _, status = request.param.partition(" ")
    with in_glue(made) if kind == "glue" else in_rest(made, int(status)) as found:
        yield found
    conftest._forget(spark, elsewhere)


@contextmanager
def opened(make_config: MakeConfig, spark: SparkSession, finance: Finance, warehouse: str = "") -> Iterator[Lifecycle]:
    catalogs = {"live": {"warehouse": warehouse}} if warehouse else {}
    config = make_config(catalogs={**catalogs, finance.name: finance.said}, defaults=POLICY, tables={"*": {}})
    with conftest.open_lifecycle(config, spark) as lifecycle:
        live = config.catalogs.live.name
        core_tables.sql(spark, f"CREATE NAMESPACE IF NOT EXISTS {live}.db")
        core_tables.sql(spark, f"CREATE TABLE IF NOT EXISTS {live}.db.t (id int) USING iceberg")
        for number in range(3):
            core_tables.sql(spark, f"INSERT OVERWRITE {live}.db.t VALUES ({number})")
        yield lifecycle
    conftest._forget(spark, finance.name)


def doomed_by(plan: Any) -> list[str]:
    return [row["path"] for row in plan.files().collect() if row["kind"] == "data"]


def kept(lifecycle: Lifecycle, plan: Any) -> set[str]:
    """Delete, and return why data files were kept; all of them are there."""
    lifecycle.commit_expiration(plan)
    rows = [row for row in lifecycle.delete_files(plan).files().collect() if row["path"] in doomed_by(plan)]
    assert all(Path(path.removeprefix("file:")).exists() for path in doomed_by(plan)), rows
    return {row["reason"] for row in rows}


@contextmanager
def losing(metadata: Path) -> Iterator[None]:
    """The metadata files that are written in the block cannot be read after it."""
    before = {*metadata.glob("*.metadata.json")}
    yield
    for each in {*metadata.glob("*.metadata.json")} - before:
        each.unlink()


def a_night(lifecycle: Lifecycle) -> None:
    """Looks at all catalogs, and reads every reader once."""
    assert lifecycle.observe_catalog() == {}
    lifecycle.scan_orphans("db.t")


@pytest.mark.parametrize("broken", [False, True], ids=["all load", "one does not"])
@pytest.mark.parametrize("is_new", [False, True], ids=["an old table", "a new table"])
def test_what_another_table_of_its_catalog_takes_up_stays(
    make_config: MakeConfig, spark: SparkSession, finance: Finance, broken: bool, is_new: bool
) -> None:
    with opened(make_config, spark, finance) as lifecycle:
        finance.make("other")
        if not is_new:
            finance.make("reader")
        a_night(lifecycle)
        if broken:
            finance.break_("other")
        if is_new:
            finance.make("reader")
        plan = lifecycle.plan_expiration("db.t", now=LATER)
        finance.take_up("reader", doomed_by(plan))
        # A look records what loads, and names the rest.
        is_named = broken and finance.said["type"] == "rest"  # Glue still says the pointer, which was read before.
        assert [*lifecycle.observe_catalog()] == [f"{finance.name}:db.other"] * is_named
        known = {each.table: each for each in lifecycle.operations.known_tables.of_catalog(finance.name)}
        assert (
            known[f"{finance.name}:db.reader"].metadata_location
            == lifecycle.get_current(f"{finance.name}:db.reader").metadata_location
        )
        assert known[f"{finance.name}:db.other"].missing_since is None
        assert kept(lifecycle, plan) == {f"reachable from {finance.name}:db.reader"}


def test_what_it_may_have_taken_up_itself_waits(make_config: MakeConfig, spark: SparkSession, finance: Finance) -> None:
    with opened(make_config, spark, finance) as lifecycle:
        finance.make("other")
        a_night(lifecycle)
        plan = lifecycle.plan_expiration("db.t", now=LATER)
        with losing(finance.folder / "db" / "other" / "metadata"):
            finance.take_up("other", doomed_by(plan))
            finance.break_("other")
        assert kept(lifecycle, plan) == {"unread_reader"}
        reader = lifecycle.resources.catalogs.reader(finance.name)
        [said] = unread_readers(lifecycle.config, reader, lifecycle.resources.live_stores).tables
        assert "of which the newest commits are not readable" in said and f"{finance.name}:db.other" in said


def test_one_that_never_loaded_stops_deletions_unless_it_reads_no_others_files(
    make_config: MakeConfig, spark: SparkSession, finance: Finance
) -> None:
    finance.make("other")
    finance.break_("other")
    with opened(make_config, spark, finance) as lifecycle:
        plan = lifecycle.plan_expiration("db.t", now=LATER)
        lifecycle.commit_expiration(plan)
        with pytest.raises(UnreadableMetadata, match=rf"{finance.name}:db\.other"):
            lifecycle.delete_files(plan)
        reader = lifecycle.resources.catalogs.reader(finance.name)
        [said] = unread_readers(lifecycle.config, reader, lifecycle.resources.live_stores).tables
        assert "never readable" in said and f"{finance.name}:db.other" in said
        config = lifecycle.config
        isolated = config.catalogs.named[finance.name].model_copy(update={"isolated": ("db.other",)})
        catalogs = config.catalogs.model_copy(update={"named": {finance.name: isolated}})
        with conftest.open_lifecycle(config.model_copy(update={"catalogs": catalogs}), spark) as told:
            assert told.delete_files(plan).deleted == plan.summary.files


def fails(*_: object, **__: object) -> Any:
    raise OperationsUnavailable("Catalog finance does not answer", hint="start it")


@pytest.fixture
def in_sql(spark: SparkSession, postgres_uri: str, tmp_path: Path) -> Iterator[Finance]:
    said = {"type": "sql", "uri": postgres_uri, "warehouse": f"file://{tmp_path}/finance"}
    made = Finance(f"finance_{next(_numbers)}", spark, tmp_path, "", fails, fails, said)
    yield made
    conftest._clear_rows(postgres_uri, [made.name])


@pytest.mark.parametrize("of", ["live", "named"])
def test_the_same_holds_in_the_table_s_own_catalog(
    make_config: MakeConfig, spark: SparkSession, in_sql: Finance, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_but_one(self: CatalogReader) -> Any:
        rows = {name: each for name, each in pointers(self).items() if not name.startswith("lifecycle.")}
        found = {name: each for name, each in rows.items() if name.endswith("db.other")}
        return rows | {name: replace(each, metadata_location="", problem="it fails") for name, each in found.items()}

    pointers = CatalogReader.pointers
    with opened(make_config, spark, in_sql) as lifecycle:
        catalog = lifecycle.config.catalogs.live.name if of == "live" else in_sql.name
        core_tables.sql(spark, f"CREATE NAMESPACE IF NOT EXISTS {catalog}.db")
        core_tables.sql(spark, f"CREATE TABLE {catalog}.db.other (id int) USING iceberg")
        a_night(lifecycle)
        plan = lifecycle.plan_expiration("db.t", now=LATER)
        at = lifecycle.resources.catalogs.reader(catalog).pointers()
        [other] = [each.metadata_location for name, each in at.items() if name.endswith("db.other")]
        with losing(Path(other.removeprefix("file:")).parent):
            take_up(spark, f"{catalog}.db.other", doomed_by(plan))
        monkeypatch.setattr(CatalogReader, "pointers", all_but_one)
        assert kept(lifecycle, plan) == {"unread_reader"}


@pytest.mark.parametrize("question", ["pointers", "tables", "others"])
def test_a_catalog_that_does_not_answer_one_question_is_silent_where_roots_overlap(
    make_config: MakeConfig, spark: SparkSession, in_sql: Finance, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = str(make_config().catalogs.live.warehouse)
    in_sql.said["warehouse"] = f"{warehouse}/db"
    with opened(make_config, spark, in_sql, warehouse) as lifecycle:
        plan = lifecycle.plan_expiration("db.t", now=LATER)
        lifecycle.commit_expiration(plan)
        with monkeypatch.context() as silent:
            silent.setattr(lifecycle.resources.catalogs.reader(in_sql.name)._source, question, fails)
            with pytest.raises(OperationsUnavailable, match="their roots overlap"):
                lifecycle.delete_files(plan)
        assert lifecycle.delete_files(plan).deleted == plan.summary.files


@pytest.mark.parametrize("surveyed", [False, True], ids=["no survey before", "surveyed before"])
def test_what_the_newest_look_saw_counts_for_a_silent_catalog(
    make_config: MakeConfig, spark: SparkSession, in_sql: Finance, surveyed: bool
) -> None:
    with opened(make_config, spark, in_sql) as lifecycle:
        core_tables.sql(spark, f"CREATE NAMESPACE {in_sql.name}.db")
        core_tables.sql(spark, f"CREATE TABLE {in_sql.name}.db.reader (id int) USING iceberg")
        core_tables.sql(spark, f"INSERT INTO {in_sql.name}.db.reader VALUES (7)")
        lifecycle.observe_catalog()
        if surveyed:
            lifecycle.scan_orphans("db.t")  # By the same process, which sees the reader as it is now.
        plan = lifecycle.plan_expiration("db.t", now=LATER)
        take_up(spark, f"{in_sql.name}.db.reader", doomed_by(plan))
        lifecycle.observe_catalog()
        with pytest.MonkeyPatch.context() as patch:
            for each in ("tables", "pointers", "entry", "others", "beside"):
                patch.setattr(lifecycle.resources.catalogs.reader(in_sql.name)._source, each, fails)
            assert kept(lifecycle, plan) == {f"reachable from {in_sql.name}:db.reader"}
