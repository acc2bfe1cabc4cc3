"""The customer's own SQL: `FOR TAG`, and the TAG statement, on live tables and on what has gone to the cold tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from artemis_lifecycle.api import Lifecycle, Tagged
from artemis_lifecycle.cold_tier.queries import Query, TagStatement, parse_tag
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import BadInput, NaiveDatetime, NoSuchSnapshot
from artemis_lifecycle.metadata.types import FOREVER_MS
from artemis_lifecycle_tests.conftest import open_lifecycle
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages

DAY = timedelta(days=1)
INCIDENT = "incident-2024-03-15-conjunction-alert"


# --- the TAG statement ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "table", "retain"),
    [
        (
            "-- Operator-side: tag a snapshot for permanent retention.\n"
            f"TAG snapshot 4729 AS '{INCIDENT}' WITH RETENTION FOREVER;",
            None,
            None,
        ),
        (f"tag Snapshot 4729 of artemis.objects as '{INCIDENT}' with retention forever", "artemis.objects", None),
        (f"TAG SNAPSHOT 4729 ON TABLE `a b`.`t``x` AS `{INCIDENT}`", "a b.`t``x`", None),
        (f"TAG SNAPSHOT 4729 AS '{INCIDENT}' WITH RETENTION 90 DAYS", None, timedelta(days=90)),
        (f"TAG SNAPSHOT 4729 AS '{INCIDENT}' WITH RETENTION 1 day;;", None, timedelta(days=1)),
        (f"TAG SNAPSHOT 4729 AS '{INCIDENT}' WITH RETENTION 2 Weeks", None, timedelta(days=14)),
        (f"TAG SNAPSHOT 4729 AS '{INCIDENT}' WITH RETENTION '36h'", None, timedelta(hours=36)),
        (f"TAG SNAPSHOT 4729 AS '{INCIDENT}' WITH RETENTION 7y", None, timedelta(days=7 * 365)),
    ],
)
def test_a_tag_statement_is_read(sql: str, table: str | None, retain: timedelta | None) -> None:
    assert parse_tag(sql) == TagStatement(sql, 4729, INCIDENT, retain, table)


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("TAG 4729 AS 'x'", "SNAPSHOT must follow, not 4729"),
        ("TAG SNAPSHOT AS 'x'", "a snapshot's id must follow"),
        ("TAG SNAPSHOT 4729 'x'", "AS must follow"),
        ("TAG SNAPSHOT 4729 AS incident", "the tag's name, as a string"),
        ("TAG SNAPSHOT 4729 AS ''", "name is empty"),
        ("TAG SNAPSHOT 4729 AS 'x' FOREVER", "unexpected FOREVER at the end"),
        ("TAG SNAPSHOT 4729 AS 'x' WITH RETENTION", "FOREVER, or a duration"),
        ("TAG SNAPSHOT 4729 AS 'x' WITH RETENTION 90", "the unit of the retention"),
        ("TAG SNAPSHOT 4729 AS 'x' WITH RETENTION 3 MONTHS", "MONTHS is not a unit"),
        ("TAG SNAPSHOT 4729 AS 'x' WITH RETENTION 'soon'", "not a duration"),
        ("TAG SNAPSHOT 4729 AS 'x' WITH RETENTION 0 DAYS", "keeps nothing"),
        ("TAG SNAPSHOT 4729 AS 'x'; SELECT 1", "unexpected SELECT at the end"),
        ("TAG SNAPSHOT 4729 OF t. AS 'x'", "AS must follow"),
    ],
)
def test_the_error_of_an_invalid_tag_statement_shows_the_right_form(sql: str, says: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_tag(sql)
    assert says in str(raised.value) and "TAG SNAPSHOT <id>" in str(raised.value)


def test_another_statement_is_left_alone() -> None:
    assert parse_tag("SELECT 'TAG SNAPSHOT 1'") is None
    assert parse_tag("/* TAG SNAPSHOT 1 AS 'x' */ SELECT 1") is None


# --- on real tables ---------------------------------------------------------------------------------------------------


@pytest.fixture
def lifecycle(make_config: Callable[..., LifecycleConfig], spark: SparkSession) -> Iterator[Lifecycle]:
    """With a cold tier, a window of 20 days, and `db.t` of four rows: committed 400, 300, 10 and 0 days ago."""
    policy = {"retention": {"window": "20d"}, "deletion": {"grace": "0s"}}
    cold = {"storage_class": "GLACIER_IR", "expected_latency": "5s"}
    with open_lifecycle(make_config(defaults=policy, catalogs={"cold": cold}), spark=spark) as opened:
        set_ages(opened, make_table(opened, "t"), [400 * DAY, 300 * DAY, 10 * DAY, 0 * DAY])
        yield opened


def rows(lifecycle: Lifecycle, sql: str) -> list[int]:
    frame = lifecycle.query(sql)
    assert isinstance(frame, DataFrame)
    return sorted(row[0] for row in frame.collect())


def translated(lifecycle: Lifecycle, sql: str) -> str:
    """With the catalogs' names as they are by default."""
    found = lifecycle.translate(sql)
    assert isinstance(found, Query)
    catalogs = lifecycle.config.catalogs
    return found.spark_sql.replace(f"{catalogs.live.name}.", "live.").replace(f"{catalogs.cold.name}.", "cold.")


def test_a_translated_query_takes_no_other_instant(lifecycle: Lifecycle) -> None:
    found = lifecycle.translate("SELECT id FROM db.t")
    with pytest.raises(BadInput, match="its instants already"):
        lifecycle.query(found, as_of=datetime.now(UTC))


def test_the_customers_statements_work_as_they_are_written(lifecycle: Lifecycle) -> None:
    first = ids_of(lifecycle, "db.t")[0]
    statement = (
        "-- Operator-side: tag a snapshot for permanent retention.\n"
        f"TAG snapshot {first} AS '{INCIDENT}' WITH RETENTION FOREVER;"
    )
    tagged = lifecycle.query(statement, who="j.smith", why="conjunction alert")
    assert isinstance(tagged, Tagged)
    assert (tagged.table, tagged.name, tagged.snapshot_id, tagged.who) == ("db.t", INCIDENT, first, "j.smith")
    assert lifecycle.snapshot_history("db.t").refs[INCIDENT].max_ref_age_ms == FOREVER_MS
    sql = f"SELECT id FROM db.t FOR TAG '{INCIDENT}'"
    assert translated(lifecycle, sql) == f"SELECT id FROM live.db.t VERSION AS OF '{INCIDENT}'"
    assert rows(lifecycle, sql) == [0]
    assert rows(lifecycle, "SELECT id FROM db.t") == [0, 1, 2, 3]


def test_a_retention_counts_from_now_and_sparks_nearest_is_shown(lifecycle: Lifecycle) -> None:
    first = ids_of(lifecycle, "db.t")[0]
    found = lifecycle.translate(f"TAG SNAPSHOT {first} OF db.t AS 'a-b' WITH RETENTION 90 DAYS")
    live = lifecycle.config.catalogs.live.name
    begin = f"ALTER TABLE {live}.db.t CREATE TAG `a-b` AS OF VERSION {first} RETAIN "
    assert found.spark_sql.startswith(begin)
    minutes = int(found.spark_sql.removeprefix(begin).removesuffix(" MINUTES"))
    assert timedelta(0) < timedelta(minutes=minutes) - 490 * DAY < timedelta(minutes=10)
    tagged = lifecycle.query(found)
    assert isinstance(tagged, Tagged) and tagged.at is not None and tagged.ends_at == tagged.at + 90 * DAY


def test_the_table_of_a_tag_is_the_one_that_has_the_snapshot(lifecycle: Lifecycle) -> None:
    other = make_table(lifecycle, "u", 1)
    (theirs,) = ids_of(lifecycle, other)
    found = lifecycle.translate(f"TAG SNAPSHOT {theirs} AS 'x'")
    assert isinstance(found, TagStatement) and found.table == "db.u"
    with pytest.raises(NoSuchSnapshot, match="No live table has snapshot 4729"):
        lifecycle.translate("TAG SNAPSHOT 4729 AS 'x'")
    with pytest.raises(NoSuchSnapshot, match=str(theirs)):
        lifecycle.translate(f"TAG SNAPSHOT {theirs} OF db.t AS 'x'")
    with pytest.raises(BadInput, match=r"db\.t, and the call names db\.u"):
        lifecycle.translate(f"TAG SNAPSHOT {theirs} OF db.t AS 'x'", table="db.u")
    live = lifecycle.config.catalogs.live.name
    lifecycle.spark.sql(
        f"CALL {live}.system.register_table('db.twin', '{lifecycle.snapshot_history(other).metadata_location}')"
    )
    with pytest.raises(BadInput, match=r"2 tables have snapshot .*TAG SNAPSHOT \d+ OF db\.twin AS"):
        lifecycle.translate(f"TAG SNAPSHOT {theirs} AS 'x'")
    assert isinstance(lifecycle.query(f"TAG SNAPSHOT {theirs} AS 'x'", table="db.u"), Tagged)


def test_words_inside_strings_names_and_comments_are_left_alone(lifecycle: Lifecycle) -> None:
    lifecycle.tag("db.t", "x", ids_of(lifecycle, "db.t")[1])
    sql = """
        SELECT /* FROM db.t FOR TAG 'x' */ 'FROM db.t FOR TAG ''x''' AS `FOR TAG`, id -- FOR TAG 'x'
        FROM `db`.`t` /* the one */ FOR
            TAG 'x' AS s WHERE s.id <> 7;
    """
    found = lifecycle.query(sql)
    assert isinstance(found, DataFrame)
    assert [tuple(row) for row in found.orderBy("id").collect()] == [
        ("FROM db.t FOR TAG 'x'", 0),
        ("FROM db.t FOR TAG 'x'", 1),
    ]
    assert found.columns == ["FOR TAG", "id"]
    shown = translated(lifecycle, sql)
    assert "live.`db`.`t` VERSION AS OF 'x' AS s" in shown and "/* FROM db.t FOR TAG 'x' */" in shown


def test_every_table_of_a_query_is_found(lifecycle: Lifecycle) -> None:
    ids = ids_of(lifecycle, "db.t")
    lifecycle.tag("db.t", "x", ids[0])
    lifecycle.tag("db.t", "y", ids[1])
    live = lifecycle.config.catalogs.live.name
    sql = f"""
        WITH t AS (SELECT id FROM db.t FOR TAG 'y')
        SELECT a.id FROM t AS a JOIN {live}.db.t b ON a.id = b.id
        WHERE a.id IN (SELECT t.id FROM db.t FOR TAG 'x') OR EXISTS (SELECT 1 FROM db.t FOR VERSION AS OF {ids[2]} v
            WHERE v.id > 1 AND a.id = 1)
        UNION ALL SELECT count(*) + 100 FROM db.t.snapshots
    """
    assert rows(lifecycle, sql) == [0, 1, 104]
    found = lifecycle.translate(sql)
    assert isinstance(found, Query)
    assert sorted((source.table, source.snapshot_id, source.clause) for source in found.sources) == sorted(
        [
            ("db.t", ids[1], "FOR TAG 'y'"),
            ("db.t", ids[3], ""),
            ("db.t", ids[0], "FOR TAG 'x'"),
            ("db.t", ids[2], f"FOR VERSION AS OF {ids[2]}"),
            ("db.t.snapshots", ids[3], ""),
        ]
    )


def test_a_tag_named_like_a_number_is_a_tag(lifecycle: Lifecycle) -> None:
    ids = ids_of(lifecycle, "db.t")
    lifecycle.tag("db.t", str(ids[3]), ids[0])
    assert rows(lifecycle, f"SELECT id FROM db.t FOR TAG '{ids[3]}'") == [0]
    assert rows(lifecycle, f"SELECT id FROM db.t FOR VERSION AS OF '{ids[3]}'") == [0, 1, 2, 3]


def test_instants_and_versions_pass_in_sparks_own_forms(lifecycle: Lifecycle) -> None:
    ids = ids_of(lifecycle, "db.t")
    at = datetime.now(UTC) - 200 * DAY
    for clause in (
        f"FOR TIMESTAMP AS OF '{at.isoformat()}'",
        f"TIMESTAMP AS OF TIMESTAMP '{at.isoformat()}'",
        "FOR SYSTEM_TIME AS OF current_timestamp() - INTERVAL 200 DAYS",
        f"FOR VERSION AS OF {ids[1]}",
        f"VERSION AS OF '{ids[1]}'",
        f"FOR SYSTEM_VERSION AS OF {ids[1]}",
    ):
        assert rows(lifecycle, f"SELECT id FROM db.t {clause}") == [0, 1], clause
    assert translated(lifecycle, f"SELECT * FROM db.t TIMESTAMP AS OF '{at.isoformat()}' x") == (
        f"SELECT * FROM live.db.t VERSION AS OF {ids[1]} x"
    )
    with pytest.raises(BadInput, match="not an instant"):
        lifecycle.query("SELECT * FROM db.t TIMESTAMP AS OF 'yesterday evening'")


def test_what_expired_is_read_from_the_cold_catalog(lifecycle: Lifecycle, spark: SparkSession) -> None:
    ids = ids_of(lifecycle, "db.t")
    name = f"{lifecycle.config.catalogs.live.name}.db.t"
    # Aged out of the live table: its end was 300 days ago.
    spark.sql(f"ALTER TABLE {name} CREATE TAG old AS OF VERSION {ids[0]} RETAIN 100 DAYS")
    spark.sql(f"ALTER TABLE {name} CREATE TAG `12` AS OF VERSION {ids[0]} RETAIN 100 DAYS")
    before = datetime.now(UTC) - 350 * DAY
    assert lifecycle.expire("db.t").failed == 0
    assert ids_of(lifecycle, "db.t") == ids[1:]
    for clause, spelled in (
        ("FOR TAG 'old'", str(ids[0])),
        ("FOR TAG '12'", str(ids[0])),
        (f"FOR VERSION AS OF {ids[0]}", str(ids[0])),
        (f"FOR TIMESTAMP AS OF '{before.isoformat()}'", str(ids[0])),
    ):
        sql = f"SELECT t.id FROM db.t {clause}"
        assert translated(lifecycle, sql) == f"SELECT t.id FROM cold.db.t VERSION AS OF {spelled}"
        assert rows(lifecycle, sql) == [0]
        found = lifecycle.translate(sql)
        assert isinstance(found, Query) and [source.tier for source in found.sources] == ["cold"]
    # The instant of a whole query: for the tables that have no clause of their own.
    found = lifecycle.translate("SELECT t.id FROM db.t", as_of=before)
    assert isinstance(found, Query)
    (source,) = found.sources
    assert (source.tier, source.snapshot_id, source.storage_class) == ("cold", ids[0], "GLACIER_IR")
    assert source.expected_latency == timedelta(seconds=5)
    both = f"SELECT a.id, b.id FROM db.t a LEFT JOIN db.t FOR VERSION AS OF {ids[1]} b ON b.id = 1"
    frame = lifecycle.query(both, as_of=before)
    assert isinstance(frame, DataFrame) and [tuple(row) for row in frame.collect()] == [(0, 1)]
    with pytest.raises(NaiveDatetime):
        lifecycle.query("SELECT * FROM db.t", as_of=before.replace(tzinfo=None))
    with pytest.raises(NoSuchSnapshot):
        lifecycle.query("SELECT * FROM db.t", as_of=datetime(1999, 1, 1, tzinfo=UTC))
    with pytest.raises(BadInput, match="no instant"):
        lifecycle.query(f"TAG SNAPSHOT {ids[1]} OF db.t AS 'x'", as_of=before)
    # One query over both tiers.
    assert rows(lifecycle, "SELECT a.id FROM db.t a LEFT ANTI JOIN db.t FOR TAG 'old' b ON a.id = b.id") == [1, 2, 3]
    with pytest.raises(NoSuchSnapshot, match="'never'"):
        lifecycle.query("SELECT * FROM db.t FOR TAG 'never'")
    with pytest.raises(NoSuchSnapshot):
        lifecycle.query("SELECT * FROM db.t FOR TIMESTAMP AS OF '1999-01-01'")


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("DROP TABLE db.t", "does not begin as a query"),
        ("", "it is empty"),
        ("INSERT INTO db.t VALUES (1)", "does not begin as a query"),
        ("WITH a AS (SELECT 9 AS id) INSERT INTO db.t SELECT * FROM a", "more than read"),
        ("FROM db.t INSERT INTO db.t SELECT id", "more than read"),
        ("SELECT * FROM db.t; DROP TABLE db.t", "cannot parse"),
        ("SELECT * FROM db.t FOR TAG incident", "FOR TAG 'name'"),
        ("SELECT * FROM t FOR TAG 'x'", "write FROM namespace.t FOR TAG 'x'"),
        ("SELECT * FROM db.t WHERE id =", "cannot parse"),
    ],
)
def test_what_does_not_only_read_or_cannot_be_read_is_refused(lifecycle: Lifecycle, sql: str, says: str) -> None:
    with pytest.raises(BadInput) as raised:
        lifecycle.query(sql)
    assert says in str(raised.value)
    assert rows(lifecycle, "SELECT id FROM db.t") == [0, 1, 2, 3]
