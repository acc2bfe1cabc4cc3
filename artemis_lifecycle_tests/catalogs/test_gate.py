"""No engine commits to a gated table without stating who writes it and why; all other tables stay as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate, RemoveSnapshotsUpdate, SetSnapshotRefUpdate
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from artemis_lifecycle.catalogs.gate.installation import attempts, gate_state, install_gate, remove_gate
from artemis_lifecycle.catalogs.gate.rules import GatedRow, mode_of, request_pass, rules_of
from artemis_lifecycle.catalogs.settings import catalog_conf, pyiceberg_properties
from artemis_lifecycle.catalogs.sql import ensure_tables
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.errors import ConfigError, LineageRejected, Refused
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle.operations.roles import ANALYST, INGEST
from artemis_lifecycle.spark.session import add_catalogs
from artemis_lifecycle_tests.conftest import MakeConfig, _forget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = "the lineage gate refuses a commit to table"
GATED, REPORTED, FREE = "ops.passes", "ops.drafts", "scratch.t"
LINEAGE = {
    "writer.id": "ingest",
    "writer.host": "station-3",
    "writer.commit_hash": "a1b2c3d",
    "writer.invocation_id": "run-1",
    "input.row_count": "2",
    "input.bytes_compressed": "100",
    "trigger.type": "schedule",
}
ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def config(make_config: MakeConfig) -> LifecycleConfig:
    return make_config(tables={"ops.*": {}, REPORTED: {"lineage": {"mode": "report"}}})


@pytest.fixture
def engine(config: LifecycleConfig) -> Iterator[Engine]:
    """Of a database whose live catalog is gated."""
    assert config.catalogs.live.uri is not None
    opened = connect(config.catalogs.live.uri)
    ensure_tables(opened)
    install_gate(opened, config.catalogs.live.name, rules_of(config))
    yield opened
    remove_gate(opened, config.catalogs.live.name)
    opened.dispose()


@pytest.fixture
def catalogs(config: LifecycleConfig, engine: Engine) -> Iterator[tuple[Catalog, Catalog]]:
    """The gated catalog, and pyiceberg's own, which never heard of the gate; with three tables, each with a row."""
    live = config.catalogs.live
    properties = pyiceberg_properties(live)
    own = {key: value for key, value in properties.items() if key != "type"}
    impl = "artemis_lifecycle.catalogs.pyiceberg_gate.GatedSqlCatalog"
    gated = load_catalog(live.name, **{**own, "py-catalog-impl": impl})
    rogue = load_catalog(live.name, **properties)
    for table in (GATED, REPORTED, FREE):
        gated.create_namespace_if_not_exists(table.split(".")[0])
        gated.create_table(table, ROWS.schema).append(ROWS, snapshot_properties=LINEAGE)
    yield gated, rogue
    gated.close()
    rogue.close()


def _location(engine: Engine, catalog: str, table: str) -> str | None:
    namespace, name = table.split(".")
    query = text(
        "SELECT metadata_location FROM iceberg_tables "
        "WHERE catalog_name = :catalog AND table_namespace = :namespace AND table_name = :name"
    )
    with engine.connect() as connection:
        values = {"catalog": catalog, "namespace": namespace, "name": name}
        return connection.execute(query, values).scalar_one_or_none()


def _swap(engine: Engine, catalog: str, table: str, new: str) -> None:
    with engine.begin() as connection:
        _swap_in(connection, catalog, table, new)


def _swap_in(connection: Any, catalog: str, table: str, new: str) -> None:
    namespace, name = table.split(".")
    connection.execute(
        text(
            "UPDATE iceberg_tables SET metadata_location = :new, previous_metadata_location = metadata_location "
            "WHERE catalog_name = :catalog AND table_namespace = :namespace AND table_name = :name"
        ),
        {"new": new, "catalog": catalog, "namespace": namespace, "name": name},
    )


def test_rogue_writers_of_any_engine_are_refused_and_other_tables_take_their_commits(
    config: LifecycleConfig, engine: Engine, catalogs: tuple[Catalog, Catalog], spark: SparkSession
) -> None:
    live, (gated, rogue) = config.catalogs.live.name, catalogs
    spark = spark.newSession()
    add_catalogs(spark, catalog_conf(config.catalogs.live))
    before = _location(engine, live, GATED)
    # Engines that never heard of the gate: pyiceberg's own catalog, plain SQL, and Spark's plain JdbcCatalog.
    with pytest.raises(DBAPIError, match=REFUSED):
        rogue.load_table(GATED).append(ROWS, snapshot_properties=LINEAGE)
    with pytest.raises(ProgrammingError, match=r"docs/lineage\.md"):
        _swap(engine, live, GATED, "file:/elsewhere.metadata.json")
    for statement in (
        f"INSERT INTO {live}.{GATED} VALUES (3)",
        f"ALTER TABLE {live}.{GATED} SET TBLPROPERTIES ('a' = 'b')",
        f"CREATE TABLE {live}.ops.more (id bigint) USING iceberg",
        f"ALTER TABLE {live}.{FREE} RENAME TO ops.renamed",
        f"ALTER TABLE {live}.{GATED} RENAME TO ops.renamed",
    ):
        with pytest.raises(Exception, match=REFUSED):
            spark.sql(statement)
    assert _location(engine, live, GATED) == before and _location(engine, live, "ops.more") is None
    # Mode report, and tables that no entry governs, take every commit.
    for table in (REPORTED, FREE):
        rogue.load_table(table).append(ROWS)
        spark.sql(f"INSERT INTO {live}.{table} VALUES (3)")
        assert gated.load_table(table).scan().to_arrow().num_rows == 5
    spark.sql(f"ALTER TABLE {live}.{GATED} RENAME TO scratch.was_gated")
    with pytest.raises(DBAPIError, match=REFUSED):
        rogue.rename_table("scratch.was_gated", GATED)
    # A dropped table has no lineage to lose; its name stays gated.
    spark.sql(f"DROP TABLE {live}.scratch.was_gated")
    with pytest.raises(DBAPIError, match=REFUSED):
        rogue.create_table(GATED, ROWS.schema)
    gated.create_table(GATED, ROWS.schema).append(ROWS, snapshot_properties=LINEAGE)
    _forget(spark, live)


def test_a_refused_commit_names_every_problem_is_recorded_and_writes_no_metadata_file(
    config: LifecycleConfig, engine: Engine, catalogs: tuple[Catalog, Catalog], tmp_path: Any
) -> None:
    gated, _ = catalogs
    table = gated.load_table(GATED)
    before, files = table.metadata_location, set(tmp_path.rglob("*.metadata.json"))
    with pytest.raises(LineageRejected, match=r"writer\.id is missing.*trigger\.type is missing") as refused:
        table.append(ROWS)
    assert refused.value.table == GATED
    lacking = {key: value for key, value in LINEAGE.items() if key != "writer.host"}
    with pytest.raises(LineageRejected, match=r"required key writer\.host is missing"):
        table.overwrite(ROWS, snapshot_properties=lacking)
    assert set(tmp_path.rglob("*.metadata.json")) == files
    assert gated.load_table(GATED).metadata_location == before
    gated.load_table(REPORTED).append(ROWS)
    with engine.connect() as connection:
        found = attempts(connection, config.catalogs.live.name)
    assert [(each.table, each.refused) for each in found] == [(REPORTED, False), (GATED, True), (GATED, True)]
    assert found[1].summaries[0]["writer.id"] == "ingest" and found[1].base_location == before
    assert "required key writer.host is missing" in found[1].problems
    assert found[2].attempted_by == engine.url.username


def test_tables_that_come_into_a_gated_name_show_the_lineage_of_all_their_snapshots(
    catalogs: tuple[Catalog, Catalog],
) -> None:
    gated, rogue = catalogs
    rogue.load_table(FREE).append(ROWS)
    location = rogue.load_table(FREE).metadata_location
    with pytest.raises(LineageRejected):
        gated.rename_table(FREE, "ops.renamed")
    with pytest.raises(LineageRejected):
        gated.register_table("ops.registered", location)
    complete = gated.load_table(GATED)
    assert gated.register_table("ops.registered", complete.metadata_location).metadata == complete.metadata
    assert gated.rename_table(GATED, "ops.renamed").metadata == complete.metadata
    with gated.create_table_transaction("ops.made", ROWS.schema) as transaction:
        transaction.append(ROWS, snapshot_properties=LINEAGE)
    with pytest.raises(LineageRejected), gated.create_table_transaction("ops.more", ROWS.schema) as transaction:
        transaction.append(ROWS)
    assert gated.load_table("ops.made").scan().to_arrow().num_rows == 2 and not gated.table_exists("ops.more")
    # Without a new snapshot there is no summary to validate.
    with gated.load_table("ops.made").transaction() as change:
        change.set_properties(owner="flight")


def test_what_comes_into_a_name_in_report_mode_is_recorded(
    config: LifecycleConfig, engine: Engine, catalogs: tuple[Catalog, Catalog]
) -> None:
    gated, rogue = catalogs
    rogue.load_table(FREE).append(ROWS)
    location = rogue.load_table(FREE).metadata_location
    gated.drop_table(REPORTED)
    gated.register_table(REPORTED, location)
    gated.drop_table(REPORTED)
    assert gated.rename_table(FREE, REPORTED).metadata_location == location
    with engine.connect() as connection:
        found = attempts(connection, config.catalogs.live.name)
    assert [(each.table, each.refused, each.metadata_location) for each in found] == [(REPORTED, False, location)] * 2
    assert all("required key writer.id is missing" in each.problems for each in found)


REPLACED = {
    "summary": {"summary": Summary(Operation.APPEND)},
    "files": {"manifest_list": "file:/elsewhere.avro", "summary": Summary(Operation.APPEND)},
    "time": {"timestamp_ms": 1, "summary": Summary(Operation.APPEND)},
}


@pytest.mark.parametrize("what", REPLACED)
def test_another_snapshot_under_a_known_id_is_a_new_one(what: str, catalogs: tuple[Catalog, Catalog]) -> None:
    table = catalogs[0].load_table(GATED)
    before, current = table.metadata_location, table.current_snapshot()
    assert current is not None

    def replace_by(**changed: Any) -> None:
        other = current.model_copy(update=changed)
        updates = (
            RemoveSnapshotsUpdate(snapshot_ids=[current.snapshot_id]),
            AddSnapshotUpdate(snapshot=other),
            SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=current.snapshot_id),
        )
        catalogs[0].commit_table(table, (), updates)

    with pytest.raises(LineageRejected, match=r"writer\.id is missing"):
        replace_by(**REPLACED[what])
    assert catalogs[0].load_table(GATED).metadata_location == before
    # With its lineage, it is a commit as any other.
    replace_by(**REPLACED[what] | {"summary": current.summary})
    assert catalogs[0].load_table(GATED).metadata_location != before


def test_a_pass_is_for_one_swap_of_one_table_from_one_base_to_one_location(
    config: LifecycleConfig, engine: Engine, catalogs: tuple[Catalog, Catalog]
) -> None:
    live = config.catalogs.live.name
    base = _location(engine, live, GATED)
    assert base is not None
    row = GatedRow(live, *GATED.split("."))

    def request(location: str, *, base: str | None = base, of: GatedRow = row) -> None:
        with engine.begin() as connection:
            assert (
                request_pass(connection, of, [{"operation": "append", **LINEAGE}], base=base, location=location) == ()
            )

    def refused(location: str) -> None:
        with pytest.raises(ProgrammingError, match=REFUSED):
            _swap(engine, live, GATED, location)

    request("file:/1")
    refused("file:/2")
    request("file:/3", base="file:/other")
    refused("file:/3")
    request("file:/4", of=GatedRow(live, "ops", "other"))
    refused("file:/4")
    request("file:/5", of=GatedRow("another", *GATED.split(".")))
    refused("file:/5")
    request("file:/6")
    with engine.begin() as connection:
        connection.execute(text("UPDATE artemis_gate.passes SET granted_at = granted_at - INTERVAL '11 minutes'"))
    refused("file:/6")
    request("file:/7")
    request("file:/7")  # A client that repeats its request.
    with engine.connect() as connection:
        _swap_in(connection, live, GATED, "file:/7")
        connection.rollback()
    _swap(engine, live, GATED, "file:/7")  # A rolled back swap leaves the pass.
    request(base, base="file:/7")
    _swap(engine, live, GATED, base)
    refused("file:/7")  # Used once, for all its requests.
    with engine.connect() as connection:
        left = connection.execute(text("SELECT metadata_location FROM artemis_gate.passes")).scalars().all()
    assert "file:/7" not in left and "file:/6" not in left


def test_a_gated_table_does_not_become_a_view_without_a_pass(
    config: LifecycleConfig, engine: Engine, catalogs: tuple[Catalog, Catalog]
) -> None:
    """Readers that do not look at the type would follow its pointer."""
    live, before = config.catalogs.live.name, _location(engine, config.catalogs.live.name, GATED)
    namespace, name = GATED.split(".")
    row = {"catalog": live, "namespace": namespace, "name": name}
    where = "WHERE catalog_name = :catalog AND table_namespace = :namespace AND table_name = :name"
    for change in ("iceberg_type = 'VIEW', metadata_location = 'file:/elsewhere'", "iceberg_type = 'VIEW'"):
        with pytest.raises(ProgrammingError, match=REFUSED), engine.begin() as connection:
            connection.execute(text(f"UPDATE iceberg_tables SET {change} {where}"), row)
    assert _location(engine, live, GATED) == before
    with engine.begin() as connection:  # Views are not gated, so they may change.
        connection.execute(
            text(
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, "
                "iceberg_type) VALUES (:catalog, :namespace, 'a_view', 'file:/1', 'VIEW')"
            ),
            row,
        )
        connection.execute(
            text(f"UPDATE iceberg_tables SET metadata_location = 'file:/2' {where}"), row | {"name": "a_view"}
        )
        connection.execute(text(f"DELETE FROM iceberg_tables {where}"), row | {"name": "a_view"})


def test_what_any_login_gives_the_gate_is_bounded(config: LifecycleConfig, engine: Engine) -> None:
    live, large = config.catalogs.live.name, "x" * 50_000_000
    for values in ((f"ops.{large}", "t", "file:/1"), ("ops", large, "file:/1"), ("ops", "t", large)):
        namespace, name, location = values
        with pytest.raises(DBAPIError, match="over 4096 characters"), engine.begin() as connection:
            request_pass(
                connection, GatedRow(live, namespace, name), [{"operation": "append"}], base=None, location=location
            )
    lacking = [{"writer.commit_hash": f"not a hash {number}", "writer.id": large[:5000]} for number in range(2_000)]
    with engine.begin() as connection:
        problems = request_pass(connection, GatedRow(live, "ops", "t"), lacking, base=None, location=None)
        (attempt,) = attempts(connection, live)
    assert len(problems) == 21 and problems[-1].endswith("more problems") and problems == attempt.problems
    assert len(attempt.summaries) == 10 and len(str(attempt)) < 50_000


def test_an_overwrite_by_delete_and_append_is_for_the_same_people_in_the_database(
    config: LifecycleConfig, engine: Engine, make_config: MakeConfig
) -> None:
    """That is how pyiceberg overwrites, and what a TRUNCATE or DELETE is."""
    few: dict[str, Any] = {"lineage": {"overwrite": {"writers": ["corrections"], "needs": []}}}
    opened: dict[str, Any] = {"lineage": {"overwrite": {**few["lineage"]["overwrite"], "operations": ["overwrite"]}}}
    own = make_config(tables={"few.*": few, "open.*": opened})
    live = config.catalogs.live.name
    install_gate(engine, live, rules_of(own))
    deleted = {**LINEAGE, "operation": "delete"}

    def problems(table: str, **more: str) -> tuple[str, ...]:
        with engine.begin() as connection:
            return request_pass(connection, GatedRow(live, table, "t"), [deleted | more], base=None, location=None)

    (said,) = problems("few")
    assert "may not delete; permitted: corrections" in said and "lineage.overwrite.operations: [overwrite]" in said
    requirements = LineageRequirements.from_config(own.policy("few.t").lineage)
    assert lineage_problems(deleted, requirements) == (said,)
    assert problems("few", **{"writer.id": "corrections"}) == problems("open") == ()


@pytest.fixture
def as_role(config: LifecycleConfig, engine: Engine) -> Iterator[Callable[[str], Engine]]:
    made: list[tuple[str, Engine]] = []

    def make(role: str) -> Engine:
        login = f"gate_{role}_{config.catalogs.live.name}"
        with engine.begin() as connection:
            connection.execute(text(f"CREATE ROLE {login} LOGIN PASSWORD 'secret' IN ROLE {role}"))
        opened = create_engine(engine.url.set(username=login, password="secret"))
        made.append((login, opened))
        return opened

    yield make
    for login, opened in made:
        opened.dispose()
        with engine.begin() as connection:
            connection.execute(text(f"DROP ROLE {login}"))


def test_writers_request_passes_and_only_the_owner_changes_the_gate(
    config: LifecycleConfig, engine: Engine, as_role: Callable[[str], Engine]
) -> None:
    live = config.catalogs.live.name
    row, complete = GatedRow(live, "ops", "t"), [{"operation": "append", **LINEAGE}]
    ingest, analyst = as_role(INGEST), as_role(ANALYST)
    with engine.begin() as connection:
        connection.execute(text(f"GRANT INSERT ON iceberg_tables TO {INGEST}"))  # As the cold catalog's guard does.
    with ingest.begin() as connection:
        assert request_pass(connection, row, complete, base=None, location="file:/1") == ()
        assert "required key operation is missing" in request_pass(connection, row, [{}], base=None, location=None)
        connection.execute(
            text("INSERT INTO iceberg_tables VALUES (:c, 'ops', 't', 'file:/1', NULL, 'TABLE')"), {"c": live}
        )
    for login, statements in (
        (ingest, ("INSERT INTO artemis_gate.passes DEFAULT VALUES", "SELECT * FROM artemis_gate.attempts")),
        (analyst, ("INSERT INTO artemis_gate.passes DEFAULT VALUES", "DELETE FROM artemis_gate.attempts")),
    ):
        for statement in (
            *statements,
            "DROP TRIGGER artemis_gate ON iceberg_tables",
            "DELETE FROM artemis_gate.rules",
            "SELECT artemis_gate.forget_attempts('any', now())",
        ):
            with (
                pytest.raises(ProgrammingError, match=r"permission denied|must be owner"),
                login.begin() as connection,
            ):
                connection.execute(text(statement))
    # Every login may ask: a gated catalog does before each commit, also to tables that no rule governs.
    with analyst.begin() as connection:
        assert mode_of(connection, GatedRow(live, "scratch", "t")) == "none"
        assert request_pass(connection, GatedRow(live, "scratch", "t"), [{}], base=None, location="file:/2") == ()
    with analyst.connect() as connection:
        assert gate_state(connection, live).condition == "present"
        assert attempts(connection, live)[0].attempted_by == ingest.url.username
    with pytest.raises(Refused, match="does not own iceberg_tables"):
        install_gate(ingest, live, ())


BROKEN = {
    "ALTER TABLE iceberg_tables DISABLE TRIGGER artemis_gate": "disabled",
    "ALTER TABLE iceberg_tables ENABLE REPLICA TRIGGER artemis_gate": "disabled",
    "ALTER TABLE iceberg_tables ENABLE TRIGGER artemis_gate": "altered",
    "DROP TRIGGER artemis_gate ON iceberg_tables": "missing",
    "DROP TABLE artemis_gate.passes": "missing",
    "CREATE OR REPLACE FUNCTION artemis_gate.mode_of(catalog TEXT, namespace TEXT, name TEXT) RETURNS TEXT "
    "LANGUAGE sql AS 'SELECT ''none'''": "altered",
    "GRANT INSERT ON artemis_gate.passes TO PUBLIC": "altered",
    "UPDATE artemis_gate.catalogs SET version = 0": "altered",
}


@pytest.mark.parametrize("statement", BROKEN)
def test_a_broken_gate_is_reported_and_enabling_it_again_restores_it(
    statement: str, config: LifecycleConfig, engine: Engine
) -> None:
    live = config.catalogs.live.name

    def condition() -> str:
        with engine.connect() as connection:
            return gate_state(connection, live).condition

    assert condition() == "present"
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    assert condition() == BROKEN[statement]
    install_gate(engine, live, rules_of(config))
    assert condition() == "present"
    insert = f"INSERT INTO iceberg_tables VALUES ('{live}', 'ops', 'rogue', 'file:/1', NULL, 'TABLE')"
    for role in ("origin", "replica"):
        with pytest.raises(ProgrammingError, match=REFUSED), engine.begin() as connection:
            connection.exec_driver_sql(f"SET LOCAL session_replication_role = {role}; {insert}")


def test_a_disabled_gate_lets_everything_pass_and_keeps_what_it_recorded(
    config: LifecycleConfig, engine: Engine, catalogs: tuple[Catalog, Catalog]
) -> None:
    live = config.catalogs.live.name
    with pytest.raises(LineageRejected):
        catalogs[0].load_table(GATED).append(ROWS)
    assert remove_gate(engine, live)
    for catalog in catalogs:
        catalog.load_table(GATED).append(ROWS)
    with engine.connect() as connection:
        assert len(attempts(connection, live)) == 1
        assert gate_state(connection, live).enabled is False
    assert not remove_gate(engine, live)


def test_a_pattern_that_postgres_cannot_read_is_refused_when_the_gate_is_enabled(
    engine: Engine, config: LifecycleConfig, make_config: MakeConfig
) -> None:
    other = make_config(tables={"ops.*": {"lineage": {"patterns": {"writer.id": "[a-c-e]"}}}})
    with pytest.raises(ConfigError, match="cannot read the pattern"):
        install_gate(engine, config.catalogs.live.name, rules_of(other))
    with engine.connect() as connection:
        assert gate_state(connection, config.catalogs.live.name).rules == rules_of(config)
