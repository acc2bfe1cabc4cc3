"""Least privilege, tried: a login that has one of the three roles does what the role is for, and nothing
more. Every case is printed.

`catalogs/test_guard.py` tries the few statements that the guard is about; here every table is tried with every verb,
what a role might do instead, and what the steps really do.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.deployments import ensure_records
from artemis_lifecycle.catalogs.guard import ensure_guard, lift_guard, publish_guarded
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import ingest_catalog
from artemis_lifecycle.catalogs.sql import ensure_tables
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import Refused
from artemis_lifecycle.operations.database import Operations, connect, migrate
from artemis_lifecycle.operations.roles import ANALYST, INGEST, LIFECYCLE
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.end_report import add_lines
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table
from artemis_lifecycle_tests.policies import AND_ARCHIVED

EMPTY_DATABASE = True

ROLES = (LIFECYCLE, INGEST, ANALYST)
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
REFUSALS = (
    "permission denied",
    "must be owner",
    "must be superuser",
    "is the cold tier, which only a handoff writes to",
    "may not approve",
)

# --- who may do what --------------------------------------------------------------------------------------------------

READ, CHANGED, WORKED = {"SELECT"}, {"SELECT", "INSERT", "UPDATE"}, {"SELECT", "INSERT", "UPDATE", "DELETE"}
NEEDED: dict[str, set[str]] = {
    # What the steps do: rows that are over are cleared away from these; all others say who decided what.
    "heartbeats": WORKED,
    # A table that moved to another catalog is known there.
    "known_tables": WORKED,
    "outbox": WORKED,
    "seen_pointers": WORKED,
    "sent_files": WORKED,
    "leases": WORKED,
    "batches": WORKED,
    "check_results": WORKED,
    "handoff_batches": WORKED,
    "deep_snapshots": WORKED,
    "listings": WORKED,
    "rest_commits": WORKED,
    "run_times": WORKED,
    "steps": WORKED,
    "live_sets": WORKED,
    "live_set_references": WORKED,
    "live_versions": WORKED,
    "live_contents": WORKED,
    "swept_tables": WORKED,
    "base_locations": WORKED,
    "alembic_version": READ,
    "identity": READ,
    "decisions": {"SELECT", "INSERT"},
    # What was seen, and who settled what: never changed.
    "table_locations": {"SELECT", "INSERT"},
    "settled_metadata": {"SELECT", "INSERT"},
    "verdicts": {"SELECT", "INSERT"},
    "gate_attempts": {"SELECT", "INSERT", "DELETE"},
    "health_history": {"SELECT", "INSERT", "DELETE"},
    "swap_attempts": {"SELECT", "INSERT", "DELETE"},
}
"""The verbs of the lifecycle's role by table of schema `lifecycle`; `CHANGED` for all others."""

WIDER: dict[str, set[str]] = {}
"""What the role has beyond that: nothing. A right that a migration gives too much goes here, so that it is seen."""

INGESTS: dict[str, set[str]] = {"heartbeats": WORKED, "holds": READ, "alembic_version": READ, "identity": READ}


class Counted:
    """Every case: counted at the end of the run, and listed where `-rP` asks for what passed."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str]] = []

    def add(self, group: str, role: str, case: str, outcome: str) -> None:
        self.rows.append((group, role, " ".join(case.split()), outcome))

    def table(self) -> str:
        return "\n".join(f"{g:<12} {r:<18} {c[:88]:<88} {o}" for g, r, c, o in self.rows)

    def counts(self) -> Iterator[str]:
        counts = Counter((g, r) for g, r, _, _ in self.rows)
        for (group, role), count in (*counts.items(), (("all", ""), len(self.rows))):
            yield f"{group:<12} {role:<18} {count:>4}"


@pytest.fixture(scope="module")
def counted() -> Iterator[Counted]:
    kept = Counted()
    yield kept
    print("\n" + kept.table())
    add_lines("privileges: statements and steps", kept.counts())


@pytest.fixture(scope="module")
def owner(postgres_uri: str) -> Iterator[Engine]:
    """Of a database with the catalogs' tables, the cold catalog's guard and the schema, and a row of each kind."""
    engine = connect(postgres_uri)
    ensure_tables(engine)
    ensure_guard(engine, "cold", "live")
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO iceberg_tables VALUES ('live', 'db', 't', 'file:/live/1', NULL, 'TABLE')"))
        publish_guarded(connection, "cold", "db.t", plan_id="p", expected_location=None, new_location="file:/cold/1")
        connection.execute(text(THAW.replace(":id", "'kept'")))
    yield engine
    with engine.begin() as connection:
        lift_guard(connection, "cold")
    engine.dispose()


@pytest.fixture(scope="module")
def logins(owner: Engine) -> Iterator[dict[str, Engine]]:
    """For each role, an engine of a new login that has that role and no other right."""
    made = {}
    suffix = uuid.uuid4().hex[:8]
    for role in ROLES:
        with owner.begin() as connection:
            connection.execute(text(f"CREATE ROLE only_{role}_{suffix} LOGIN PASSWORD 'secret' IN ROLE {role}"))
        made[role] = create_engine(owner.url.set(username=f"only_{role}_{suffix}", password="secret"))
    yield made
    for engine in made.values():
        engine.dispose()
        with owner.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {engine.url.username}"))
            connection.execute(text(f"DROP ROLE {engine.url.username}"))


def _refused(engine: Engine, statement: str) -> str | None:
    """Why Postgres refuses a statement for want of a right; None when it runs, or fails for another reason."""
    with engine.connect() as connection:
        try:
            connection.execute(text(statement.replace(":", r"\:")))
        except DBAPIError as error:
            said = str(error.orig).partition("\n")[0]
            return said if any(refusal in said for refusal in REFUSALS) else None
        finally:
            connection.rollback()
    return None


@pytest.mark.seconds
def test_every_table_with_every_verb(owner: Engine, logins: dict[str, Engine], counted: Counted) -> None:
    with owner.connect() as connection:
        tables = connection.execute(
            text("SELECT table_name FROM information_schema.tables WHERE table_schema = 'lifecycle' ORDER BY 1")
        )
        names = list(tables.scalars())
        columns = {
            name: connection.execute(
                text(
                    "SELECT column_name FROM information_schema.columns WHERE table_schema = 'lifecycle' "
                    "AND table_name = :name ORDER BY ordinal_position"
                ),
                {"name": name},
            ).scalar()
            for name in names
        }
    assert NEEDED.keys() | WIDER.keys() | INGESTS.keys() <= set(names)
    differing = []
    for role in ROLES:
        for name in names:
            if role == LIFECYCLE:
                expected = NEEDED.get(name, CHANGED) | WIDER.get(name, set())
            else:
                expected = INGESTS.get(name, set()) if role == INGEST else set()
            for verb in VERBS:
                first = columns[name]
                refused = _refused(
                    logins[role],
                    {
                        "SELECT": f"SELECT * FROM lifecycle.{name} LIMIT 1",
                        "INSERT": f"INSERT INTO lifecycle.{name} ({first}) SELECT NULL WHERE false",
                        "UPDATE": f"UPDATE lifecycle.{name} SET {first} = NULL WHERE false",
                        "DELETE": f"DELETE FROM lifecycle.{name} WHERE false",
                        "TRUNCATE": f"TRUNCATE lifecycle.{name}",
                    }[verb],
                )
                wider = role == LIFECYCLE and verb in WIDER.get(name, ())
                said = "refused" if refused else ("allowed, wider than the steps need" if wider else "allowed")
                counted.add("verbs", role, f"{verb} lifecycle.{name}", said)
                if (refused is None) != (verb in expected):
                    differing.append((role, verb, name, said))
    assert not differing


# --- what a role might try instead ------------------------------------------------------------------------------------

THAW = (
    "INSERT INTO lifecycle.thaws (thaw_id, table_uuid, table_name, snapshot_ids, case_id, requester, reason, days, "
    "files_location, requested_from, lapses_at) VALUES (:id, 'u', 'db.t', '{1}', 'case', 'ada', 'why', 1, 'file:/f', "
    "'here', now())"
)
BEAT = (
    "INSERT INTO lifecycle.heartbeats (table_uuid, table_name, writer_id, expires_at) VALUES ('u', 'db.t', 'w', now())"
)
HOLD = (
    "INSERT INTO lifecycle.holds (hold_id, table_uuid, table_name, owner, reason, snapshot_ids) "
    "VALUES ('h', 'u', 'db.t', 'o', 'r', '{}')"
)
ALL, NOBODY = frozenset(ROLES), frozenset[str]()
ONLY_LIFECYCLE, WRITERS = frozenset({LIFECYCLE}), frozenset({LIFECYCLE, INGEST})
TRIED: tuple[tuple[str, frozenset[str]], ...] = (
    # The catalogs' rows.
    ("SELECT * FROM iceberg_tables", ALL),
    ("SELECT * FROM iceberg_namespace_properties", ALL),
    ("UPDATE iceberg_tables SET metadata_location = 'file:/live/2' WHERE catalog_name = 'live'", WRITERS),
    ("INSERT INTO iceberg_tables VALUES ('live', 'db', 'new', 'file:/live/3', NULL, 'TABLE')", WRITERS),
    ("DELETE FROM iceberg_tables WHERE catalog_name = 'live'", WRITERS),
    ("INSERT INTO iceberg_namespace_properties VALUES ('live', 'db', 'k', 'v')", WRITERS),
    ("UPDATE iceberg_tables SET metadata_location = 'file:/cold/2' WHERE catalog_name = 'cold'", NOBODY),
    ("UPDATE iceberg_tables SET catalog_name = 'live' WHERE catalog_name = 'cold'", NOBODY),
    ("UPDATE iceberg_tables SET catalog_name = 'cold', table_name = 'x' WHERE catalog_name = 'live'", NOBODY),
    ("UPDATE iceberg_tables SET iceberg_type = 'VIEW' WHERE catalog_name = 'cold'", NOBODY),
    ("INSERT INTO iceberg_tables VALUES ('cold', 'db', 'new', 'file:/cold/3', NULL, 'TABLE')", NOBODY),
    ("DELETE FROM iceberg_tables WHERE catalog_name = 'cold'", NOBODY),
    ("DELETE FROM iceberg_tables", NOBODY),
    ("INSERT INTO iceberg_namespace_properties VALUES ('cold', 'more', 'k', 'v')", NOBODY),
    ("DELETE FROM iceberg_namespace_properties WHERE catalog_name = 'cold'", NOBODY),
    (
        "INSERT INTO iceberg_tables VALUES ('cold', 'db', 't', 'file:/x', NULL, 'TABLE') ON CONFLICT "
        "(catalog_name, table_namespace, table_name) DO UPDATE SET metadata_location = 'file:/x'",
        NOBODY,
    ),
    (
        "MERGE INTO iceberg_tables t USING (SELECT 1) s ON t.catalog_name = 'cold' WHEN MATCHED THEN DELETE",
        NOBODY,
    ),
    ("TRUNCATE iceberg_tables", NOBODY),
    ("COPY iceberg_tables FROM PROGRAM 'true'", NOBODY),
    # Around the guard.
    ("ALTER TABLE iceberg_tables DISABLE TRIGGER ALL", NOBODY),
    ("DROP TRIGGER artemis_cold ON iceberg_tables", NOBODY),
    ("SET session_replication_role = replica", NOBODY),
    ("DELETE FROM artemis_cold.catalogs", NOBODY),
    ("UPDATE artemis_cold.catalogs SET catalog_name = 'nobody'", NOBODY),
    ("INSERT INTO artemis_cold.catalogs VALUES ('live', 'x', 1)", NOBODY),
    ("UPDATE artemis_cold.publications SET transaction = pg_current_xact_id()", NOBODY),
    ("DELETE FROM artemis_cold.publications", NOBODY),
    ("SELECT * FROM artemis_cold.publications", ONLY_LIFECYCLE),
    (
        "INSERT INTO artemis_cold.publications (catalog_name, table_identifier, plan_id, new_location) "
        "VALUES ('cold', 'db.t', 'p', 'file:/cold/1')",
        ONLY_LIFECYCLE,
    ),
    ("CREATE OR REPLACE FUNCTION artemis_cold.refuse(a text, b text) RETURNS void LANGUAGE sql AS 'SELECT'", NOBODY),
    ("CREATE FUNCTION artemis_cold.mine() RETURNS void LANGUAGE sql AS 'SELECT'", NOBODY),
    ("CREATE TABLE artemis_cold.mine (a int)", NOBODY),
    ("DROP SCHEMA artemis_cold CASCADE", NOBODY),
    # Records.
    (THAW.replace(":id", "'mine'"), ONLY_LIFECYCLE),
    ("UPDATE lifecycle.thaws SET ended_at = now() WHERE thaw_id = 'kept'", ONLY_LIFECYCLE),
    ("DELETE FROM lifecycle.thaws WHERE thaw_id = 'kept'", NOBODY),
    ("DELETE FROM lifecycle.quarantines", NOBODY),
    ("DELETE FROM lifecycle.pauses", NOBODY),
    ("TRUNCATE lifecycle.thaws", NOBODY),
    ("DROP TABLE lifecycle.thaws", NOBODY),
    ("ALTER TABLE lifecycle.thaws DROP CONSTRAINT thaws_second_person", NOBODY),
    # Others' promises.
    (HOLD, ONLY_LIFECYCLE),
    ("UPDATE lifecycle.holds SET released_at = now()", ONLY_LIFECYCLE),
    ("UPDATE lifecycle.plans SET status = 'done'", ONLY_LIFECYCLE),
    ("UPDATE lifecycle.batches SET state = 'done'", ONLY_LIFECYCLE),
    ("UPDATE lifecycle.leases SET expires_at = now()", ONLY_LIFECYCLE),
    ("UPDATE lifecycle.pauses SET ended_at = now()", ONLY_LIFECYCLE),
    ("SELECT nextval('lifecycle.lease_token')", ONLY_LIFECYCLE),
    ("SELECT setval('lifecycle.lease_token', 1)", NOBODY),
    (BEAT, WRITERS),
    # Approvals, and what stays.
    ("UPDATE lifecycle.thaws SET approved_by = 'bob', approved_at = now() WHERE thaw_id = 'kept'", NOBODY),
    ("UPDATE lifecycle.decisions SET who = 'bob'", NOBODY),
    ("DELETE FROM lifecycle.decisions", NOBODY),
    ("SELECT 1 FROM lifecycle.locks FOR UPDATE", ONLY_LIFECYCLE),
    ("SELECT lifecycle.take_table_lock('u')", NOBODY),
    ("SELECT * FROM lifecycle.holds", WRITERS),
    # The schema and the server.
    ("CREATE TABLE lifecycle.mine (a int)", NOBODY),
    ("CREATE TABLE public.mine (a int)", NOBODY),
    ("CREATE SCHEMA mine", NOBODY),
    ("DROP SCHEMA lifecycle CASCADE", NOBODY),
    ("GRANT artemis_lifecycle TO CURRENT_USER", NOBODY),
    ("CREATE ROLE mine", NOBODY),
    ("SELECT pg_read_file('/etc/passwd')", NOBODY),
    ("SELECT * FROM pg_authid", NOBODY),
    ("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usesysid = 10 AND pid <> pg_backend_pid()", NOBODY),
)


@pytest.mark.seconds
def test_what_a_role_might_try(logins: dict[str, Engine], counted: Counted) -> None:
    differing = []
    for statement, may in TRIED:
        for role in ROLES:
            refused = _refused(logins[role], statement)
            counted.add("statements", role, statement, "allowed" if refused is None else f"refused: {refused[:70]}")
            if (refused is None) != (role in may):
                differing.append((role, statement, refused))
    assert not differing


def test_a_role_does_not_become_another(logins: dict[str, Engine], counted: Counted) -> None:
    for role in ROLES:
        for other in ROLES:
            if other != role:
                refused = _refused(logins[role], f"SET ROLE {other}")
                counted.add("statements", role, f"SET ROLE {other}", f"refused: {refused}")
                assert refused is not None


def test_a_thaw_is_never_approved_by_who_asked_for_it(
    owner: Engine, logins: dict[str, Engine], counted: Counted
) -> None:
    for who in ("ada", "ADA", " ada "):
        statement = f"UPDATE lifecycle.thaws SET approved_by = '{who}', approved_at = now() WHERE thaw_id = 'kept'"
        with pytest.raises(DBAPIError, match="thaws_second_"), owner.begin() as connection:
            connection.execute(text(statement))
        counted.add("statements", LIFECYCLE, statement, "refused: thaws_second_…")


# --- what the steps really do -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_role(owner: Engine, logins: dict[str, Engine], module_configs: MakeConfig) -> Callable[[str], LifecycleConfig]:
    """A configuration whose every address has the login of a role, on catalogs whose guard its owner has set up."""

    def make(role: str) -> LifecycleConfig:
        uri = logins[role].url.render_as_string(hide_password=False)
        addresses: dict[str, Any] = {"live": {"uri": uri}, "cold": {"uri": uri}}
        policy = {**AND_ARCHIVED, "lineage": {"mode": "report"}}
        config = module_configs(catalogs=addresses, operations={"uri": uri}, defaults=policy, tables={"db.*": {}})
        ensure_guard(owner, config.catalogs.cold.name, config.catalogs.live.name)
        with owner.begin() as connection:
            ensure_records(connection)
            # Rows of other tests, whose tables never were.
            lift_guard(connection, "cold")
            connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name IN ('live', 'cold')"))
        return config

    return make


def test_the_lifecycle_does_its_steps_with_its_own_role(
    by_role: Callable[[str], LifecycleConfig], spark: SparkSession, counted: Counted
) -> None:
    with Lifecycle.open(by_role(LIFECYCLE), spark=spark) as lifecycle:

        def step(name: str, call: Callable[[], Any]) -> Any:
            found = call()
            counted.add("steps", LIFECYCLE, name, "done")
            return found

        table = step("make a table and write to it", lambda: make_table(lifecycle, "t", 4))
        live = lifecycle.config.catalogs.live.name
        step("overwrite it", lambda: spark.sql(f"INSERT OVERWRITE {live}.{table} SELECT 9"))
        first, second = ids_of(lifecycle, table)[:2]
        hold = step("hold", lambda: lifecycle.hold(table, "o", "r", snapshot_ids=[first]))
        step("release", lambda: lifecycle.release(hold.hold_id))
        step("tag", lambda: lifecycle.tag(table, "kept", second))
        step("untag", lambda: lifecycle.untag(table, "kept"))
        step("pause", lambda: lifecycle.pause(table, who="w", why="y"))
        step("resume", lambda: lifecycle.resume(table, who="w"))
        with lifecycle.writing(table, "w"):
            counted.add("steps", LIFECYCLE, "a heartbeat", "done")
        plan = step("plan", lambda: lifecycle.plan_expiration(table))
        step("hand off", lambda: lifecycle.hand_off(plan))
        step("commit", lambda: lifecycle.commit_expiration(plan))
        assert step("delete", lambda: lifecycle.delete_files(plan)).deleted > 0
        scan = step("scan for orphans", lambda: lifecycle.scan_orphans(table))
        step("delete orphans", lambda: lifecycle.delete_orphans(scan))
        step("scan the cold table", lambda: lifecycle.scan_cold(table))
        step("explain", lambda: lifecycle.explain(table, scan.metadata_location))
        assert step("read cold rows", lambda: lifecycle.read(table, snapshot_id=first).count()) == 1
        moved = step("move into the deep archive", lambda: lifecycle.deep_archive(table))
        assert moved.snapshot_ids, moved
        step("list thaws", lambda: lifecycle.thaws(table))
        other = make_table(lifecycle, "other", 2)
        lost = ids_of(lifecycle, other)[0]
        step("all of it at once", lambda: lifecycle.expire(other))
        step("restore", lambda: lifecycle.restore(other, lost, "back"))
        step("health", lambda: lifecycle.table_health(table))
        step("record lineage", lambda: lifecycle.record_lineage(table))
        step("compact manifests", lambda: lifecycle.compact_manifests(table))


def test_ingest_writes_tables_and_beats_with_its_own_role(
    by_role: Callable[[str], LifecycleConfig], counted: Counted
) -> None:
    config = by_role(INGEST)
    live = config.catalogs.live.model_copy(update={"properties": {"init_catalog_tables": "false"}})
    catalog = ingest_catalog(live)
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    catalog.create_namespace("db")
    made = catalog.create_table("db.t", rows.schema)
    assert config.operations.uri is not None
    with Operations.open(config.operations.uri) as operations:
        table_uuid = str(made.metadata.table_uuid)
        beat = operations.heartbeats.beat(table_uuid, "db.t", "w", ttl=timedelta(minutes=1))
        assert not operations.holds.active(table_uuid)
        made.append(rows)
        assert [each.writer_id for each in operations.heartbeats.live(table_uuid)] == [beat.writer_id]
        operations.heartbeats.stop(table_uuid, "w")
    assert catalog.load_table("db.t").scan().to_arrow().num_rows == 2
    catalog.drop_table("db.t")
    catalog.close()
    for case in ("make a namespace and a table", "append", "see holds", "beat and stop", "drop its own table"):
        counted.add("steps", INGEST, case, "done")
    with CatalogReader(Catalog(name=config.catalogs.cold.name, uri=config.catalogs.cold.uri)) as cold:
        assert cold.tables() == []
        with pytest.raises(DBAPIError, match="only a handoff writes to"):
            cold.create_namespace("mine")
    counted.add("steps", INGEST, "read the cold catalog", "done")
    counted.add("steps", INGEST, "make a namespace in the cold catalog", "refused")


def test_an_analyst_reads_both_catalogs_and_nothing_of_the_schema(
    by_role: Callable[[str], LifecycleConfig], owner: Engine, counted: Counted
) -> None:
    config = by_role(ANALYST)
    for catalog in (config.catalogs.live, config.catalogs.cold):
        with CatalogReader(catalog) as reader:
            assert reader.tables() == []
            with pytest.raises(DBAPIError, match="permission denied"):
                reader.create_namespace("mine")
        counted.add("steps", ANALYST, f"read catalog {catalog.name}, and make a namespace in it", "read; refused")
    assert config.operations.uri is not None
    before = datetime.now(UTC)
    with pytest.raises(Refused, match="permission denied"):
        Operations.open(config.operations.uri)
    counted.add("steps", ANALYST, "open the operations database", "refused")
    with owner.connect() as connection:
        assert connection.execute(text("SELECT now()")).scalar_one() >= before - timedelta(minutes=1)
