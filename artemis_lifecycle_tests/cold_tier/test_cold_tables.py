"""Cold tables of past years: which one has a snapshot changes; what is answered, and by which files, does not."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.cold_tier.cold_metadata import (
    Meaning,
    add_late,
    build_metadata,
    complete_until,
    continued,
    snapshot_at,
    to_bytes,
)
from artemis_lifecycle.cold_tier.cold_split import CLOSED_TABLES, Json, closed_tables, covering, log_between, split
from artemis_lifecycle.cold_tier.cold_tables import ColdTable, ColdTables
from artemis_lifecycle.cold_tier.scrub import verify_copies
from artemis_lifecycle.errors import NoSuchSnapshot, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.walk.plan_checks import cold_copy
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.cold_tier.test_cold_metadata import IDENTITY, MAPPED, live, log
from artemis_lifecycle_tests.cold_tier.world import Print, fingerprint
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import Killed, lapse
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages
from artemis_lifecycle_tests.policies import AND_ARCHIVED

QUARTER = 90 * 24 * 3_600_000


def at(quarter: int) -> int:
    return quarter * QUARTER


def past(ids: list[int], history: list[tuple[int, int]], **more: Any) -> Json:
    """A live table whose snapshot n was committed in quarter n."""
    metadata = live(ids, [(at(when), snapshot) for when, snapshot in history], **more)
    for snapshot in metadata["snapshots"]:
        snapshot["timestamp-ms"] = at(snapshot["snapshot-id"])
        snapshot["parent-snapshot-id"] = snapshot["snapshot-id"] - 1
    return {**metadata, "last-updated-ms": at(max([*ids, *(when for when, _ in history)]))}


def opened(tables: Mapping[str, Json]) -> ColdTables:
    def read(name: str) -> tuple[str, bytes]:
        return f"s3://cold/{name}", to_bytes(tables[name])

    newest = parse_table_metadata(to_bytes(tables["ns.t"]), "s3://cold/ns.t")
    return ColdTables(ColdTable("ns.t", newest), read)


def current_at(cold: ColdTables, at_ms: int) -> int | None:
    found = cold.closed_log(at_ms)
    found = cold.newest.metadata.snapshot_log if found is None else found
    return snapshot_at([(entry.timestamp_ms, entry.snapshot_id) for entry in found], at_ms)


@pytest.mark.seconds
@given(st.data())
def test_divided_tables_answer_as_the_undivided_one(data: st.DataObject) -> None:
    """A table commits, tags and rolls back for years; night after night some snapshots go to cold, late ones too, and
    the live log is cut."""
    quarter, ids, history = 0, [1], [(1, 1)]
    gone: set[int] = set()
    refs: dict[str, dict[str, Any]] = {}
    undivided: Json | None = None
    tags: tuple[Meaning, ...] = ()
    tables: dict[str, Json] = {}
    cut, nights = 0, data.draw(st.integers(1, 6))
    quarter = 1
    for night in range(nights):
        for _ in range(data.draw(st.integers(1, 5))):
            quarter += data.draw(st.integers(1, 6))
            ids.append(quarter)
            history.append((quarter, quarter))
            if data.draw(st.booleans()):
                quarter += 1
                history.append((quarter, data.draw(st.sampled_from([each for each in ids if each not in gone]))))
        here = [each for each in ids if each not in gone]
        if data.draw(st.booleans()):
            refs[f"tag {night}"] = {"snapshot-id": data.draw(st.sampled_from(here)), "type": "tag"}
        current = history[-1][1]
        main = {"main": {"snapshot-id": current, "type": "branch"}}
        now = past(here, history[cut:], refs={**refs, **main}, **{"current-snapshot-id": current})
        archived = set(data.draw(st.lists(st.sampled_from(here), unique=True))) - {current}
        gone |= archived
        if not archived:
            continue
        tags = continued(tags, [(now["last-updated-ms"], {name: ref["snapshot-id"] for name, ref in refs.items()})])
        undivided = build_metadata(now, undivided, "s3://cold/before", archived, IDENTITY, MAPPED, tags=tags)
        by, above = data.draw(st.sampled_from(["year", "month"])), data.draw(st.integers(1, 6))
        before = dict(tables)
        closed = closed_tables(before.get("ns.t", {}).get("properties"))
        late: dict[str, set[int]] = {}
        for each in archived:
            covers = covering(closed, at(each))
            if covers is not None:
                late.setdefault(covers.name, set()).add(each)
        own = archived.difference(*late.values()) if late else archived
        grown = build_metadata(now, before.get("ns.t"), "s3://cold/before", own, IDENTITY, MAPPED, tags=tags)
        tables["ns.t"], pieces = split(grown, by, above, complete_until(grown), f"ns.t_{{}}_{night}".format)
        assert not pieces.keys() & tables.keys()
        tables |= pieces
        for name, some in late.items():
            tables[name] = add_late(now, before[name], f"s3://cold/{name}", some, IDENTITY, MAPPED, tags=tags)
        assert all(tables[name] == metadata for name, metadata in before.items() if name not in {*late, "ns.t"})
        # What the commit leaves: the log begins with the newest entry or before, and names no snapshot that is gone.
        cut = data.draw(st.integers(cut, len(history) - 1))
    if undivided is None:
        return
    cold = opened(tables)
    ends = [table.until_ms for table in cold.closed]
    assert ends == sorted(set(ends)) and {table.name for table in cold.closed} | {"ns.t"} == tables.keys()
    names = [snapshot["snapshot-id"] for metadata in tables.values() for snapshot in metadata["snapshots"]]
    assert sorted(names) == sorted(gone)
    expected = [(entry["timestamp-ms"], entry["snapshot-id"]) for entry in undivided["snapshot-log"]]
    for when in range(quarter + 2):
        for instant in (at(when) - 1, at(when), at(when) + 1):
            assert current_at(cold, instant) == snapshot_at(expected, instant), instant
    # An engine that opens one year answers no instant of another year with a snapshot of its own.
    for table in cold.closed:
        log = [(entry["timestamp-ms"], entry["snapshot-id"]) for entry in tables[table.name]["snapshot-log"]]
        assert not snapshot_at(log, table.until_ms) and not snapshot_at(log, at(quarter + 2))
    log = [(entry.timestamp_ms, entry.snapshot_id) for entry in cold.whole().snapshot_log]
    assert all(snapshot_at(log, at(when)) == snapshot_at(expected, at(when)) for when in range(quarter + 2))
    for each in ids:
        holder = cold.holding(each)
        assert (holder is not None) == (each in gone)
        if holder is not None:
            covers = covering(cold.closed, at(each))
            assert holder.name == ("ns.t" if covers is None else covers.name)
    tagged = {name: cold.tagged(name) for name in refs}
    assert {name: found and found[0] for name, found in tagged.items()} == {
        name: undivided["refs"].get(name, {}).get("snapshot-id") for name in refs
    }
    whole = cold.whole()
    assert {snapshot.snapshot_id for snapshot in whole.snapshots} == gone
    assert whole.table_uuid == IDENTITY.table_uuid
    assert len({metadata["table-uuid"] for metadata in tables.values()}) == len(tables)


def test_a_stretch_of_the_log_begins_with_what_was_current() -> None:
    whole = log((10, 1), (20, 2), (20, 3), (30, 1))
    assert log_between(whole, None, 20) == log((10, 1))
    assert log_between(whole, 25, None) == log((25, 2), (30, 1))
    assert log_between(whole, 20, 30) == log((20, 2), (20, 3))
    assert log_between(whole, 5, 8) == []


def test_a_damaged_list_of_closed_tables_is_an_error() -> None:
    metadata = build_metadata(live([1, 2]), None, None, {1}, IDENTITY, MAPPED)
    metadata["properties"][CLOSED_TABLES] = '[["ns.t_2024"]]'
    with pytest.raises(UnreadableMetadata, match="list of closed tables"):
        opened({"ns.t": metadata})


# --- on real tables -------------------------------------------------------------------------------------------------

NOW = datetime(2026, 6, 1, tzinfo=UTC)
COMMITS = [datetime(year, month, 3, tzinfo=UTC) for year, month in ((2023, 2), (2023, 9), (2024, 1), (2024, 2))]
COMMITS += [datetime(2025, 7, 3, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC), datetime(2026, 5, 3, tzinfo=UTC)]


@pytest.mark.nightly
def test_years_of_a_real_table(make_config: MakeConfig, spark: SparkSession) -> None:
    config = make_config(
        defaults={**AND_ARCHIVED, "cold_tier": {"retain": "500d", "split": {"above": 3}}}, tables={"db.*": {}}
    )
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", len(COMMITS))
        ids = ids_of(lifecycle, table)
        lifecycle.tag(table, "incident", ids[1])
        live_name = f"{config.catalogs.live.name}.{table}"
        spark.sql(f"ALTER TABLE {live_name} CREATE TAG flood AS OF VERSION {ids[3]} RETAIN 1 DAYS")
        set_ages(lifecycle, table, [NOW - commit for commit in COMMITS], NOW)
        before = _prints(lifecycle, table, ids)

        # The first handoff: whichever write it dies at, it ends with the years, each snapshot in one of them.
        plan = lifecycle.plan_expiration(table)
        assert set(plan.expired_snapshots) == {*ids[:-1]} - {ids[1]}
        died: set[str] = set()

        def die(name: str) -> None:
            if name.startswith(("handoff.metadata", "handoff.publish")):
                point = f"{name} {sum(each.startswith(name) for each in died)}"
                if len([each for each in died if each.startswith(name)]) < 4:
                    died.add(point)
                    raise Killed(name)

        while True:
            try:
                with crash_points.installed(die):
                    done = lifecycle.hand_off(plan)
                break
            except Killed:
                lapse(lifecycle, "leases")
        assert len(died) >= 12 and set(done.archived) == set(plan.expired_snapshots)
        assert _members(lifecycle, table) == {
            "db.t_2023": [ids[0]],
            "db.t_2024": [ids[2], ids[3]],
            "db.t_2025": [ids[4]],
            "db.t": [ids[5]],
        }
        lifecycle.commit_expiration(plan)
        assert lifecycle.delete_files(plan).failed == 0
        closed_2024 = _location(lifecycle, "db.t_2024")

        # A tag let go: its snapshot expires late, and takes its place in its year. The others are not written again.
        lifecycle.untag(table, "incident")
        late = lifecycle.plan_expiration(table)
        assert late.expired_snapshots == (ids[1],)
        assert lifecycle.hand_off(late).archived == (ids[1],)
        assert lifecycle.hand_off(late).attempts == 0
        lifecycle.commit_expiration(late)
        assert lifecycle.delete_files(late).failed == 0
        assert _members(lifecycle, table)["db.t_2023"] == ids[:2]
        assert _location(lifecycle, "db.t_2024") == closed_2024
        assert (
            cold_copy(lifecycle.resources, late).problems == () and cold_copy(lifecycle.resources, plan).problems == ()
        )

        # Every snapshot by id and by instant, those of the tag by its name; what nobody has fails.
        assert _prints(lifecycle, table, ids) == before
        for snapshot_id, commit in zip(ids, COMMITS, strict=True):
            for instant in (commit, commit + timedelta(days=20)):
                route = lifecycle.route(table, as_of=instant)
                assert route.snapshot_id == snapshot_id
                assert route.cold_table == (None if snapshot_id == ids[-1] else _year(snapshot_id, ids))
        # A year begins with what was current: committed in another year, and another table has it.
        turn = lifecycle.route(table, as_of=datetime(2025, 3, 1, tzinfo=UTC))
        assert (turn.snapshot_id, turn.cold_table) == (ids[3], "db.t_2024")
        with pytest.raises(NoSuchSnapshot):
            lifecycle.route(table, as_of=datetime(2022, 12, 31, tzinfo=UTC))
        assert lifecycle.route(table, tag="flood").cold_table == "db.t_2024"
        rows = lifecycle.query("SELECT count(*) AS n FROM db.t", as_of=datetime(2024, 6, 1, tzinfo=UTC)).collect()
        assert rows[0]["n"] == 4
        history = lifecycle.cold_history(table)
        assert [each.snapshot_id for each in history.snapshots] == ids[:-1]
        assert [each.tags for each in history.snapshots if each.tags] == [("incident",), ("flood",)]

        # Nothing lies about, the copies read back.
        assert lifecycle.scan_cold(table).unknown_files == 0
        stores = (lifecycle.live_stores, lifecycle.cold_stores)
        assert not verify_copies(spark, *stores, lifecycle.root, plan.table_uuid).damaged

        # The engines, on the tables of the years by themselves.
        catalog = config.catalogs.cold
        frame = spark.read.option("timestampAsOf", "2024-01-20 00:00:00").table(f"{catalog.name}.db.t_2024")
        assert fingerprint(frame) == before[ids[2]]
        with pytest.raises(Exception, match=r"[Ss]napshot"):
            spark.read.option("timestampAsOf", "2024-06-01 00:00:00").table(f"{catalog.name}.db.t_2023").collect()
        by_tag = spark.read.option("versionAsOf", "flood").table(f"{catalog.name}.db.t_2024")
        assert fingerprint(by_tag) == before[ids[3]]
        python = load_catalog(catalog.name, **pyiceberg_properties(catalog)).load_table("db.t_2024")
        assert len(python.scan(snapshot_id=ids[3]).to_arrow()) == 4
        with pytest.raises(Exception, match="cold tier"):
            core_tables.sql(spark, f"INSERT INTO {catalog.name}.db.t_2024 VALUES (99)")

        # Restore, and the archive.
        lifecycle.restore(table, ids[2], "back")
        assert fingerprint(spark.read.option("versionAsOf", "back").table(live_name)) == before[ids[2]]
        held = lifecycle.hold(table, "legal", "a case", snapshot_ids=[ids[0]])
        lifecycle.release(held.hold_id)
        move = lifecycle.deep_archive(table, now=NOW, dry_run=True)
        assert set(move.snapshot_ids) == set(ids[:3])


def _prints(lifecycle: Lifecycle, table: str, ids: list[int]) -> dict[int, Print]:
    return {each: fingerprint(lifecycle.read(table, snapshot_id=each)) for each in ids}


def _tables(lifecycle: Lifecycle, table: str) -> ColdTables:
    found = lifecycle.cold_tables(lifecycle.steps.table_state(table).metadata.table_uuid)
    assert found is not None
    return found


def _members(lifecycle: Lifecycle, table: str) -> dict[str, list[int]]:
    return {
        each.name: [snapshot.snapshot_id for snapshot in each.metadata.snapshots] for each in _tables(lifecycle, table)
    }


def _location(lifecycle: Lifecycle, name: str) -> str:
    return lifecycle.resources.cold_catalog.entry(name).metadata_location


def _year(snapshot_id: int, ids: list[int]) -> str:
    year = COMMITS[ids.index(snapshot_id)].year
    return "db.t" if year == 2026 else f"db.t_{year}"


@pytest.mark.parametrize("dropped", [False, True])
def test_years_whose_names_were_given_away_are_published_under_others(
    make_config: MakeConfig, spark: SparkSession, dropped: bool
) -> None:
    """The cold catalog was put back to before a table's first handoff, and another table has the name of its year."""
    config = make_config(defaults={**AND_ARCHIVED, "cold_tier": {"split": {"above": 1}}}, tables={"db.*": {}})
    live, cold = config.catalogs.live.name, config.catalogs.cold.name
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "y", len(COMMITS))
        set_ages(lifecycle, table, [NOW - commit for commit in COMMITS], NOW)
        ids = ids_of(lifecycle, table)
        before = _prints(lifecycle, table, ids)
        table_uuid = lifecycle.steps.table_uuid(table)
        lifecycle.expire(table)
        if dropped:
            lifecycle.observe_catalog()
            core_tables.sql(spark, f"DROP TABLE {live}.{table} PURGE")
            lifecycle.observe_catalog()
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(text("ALTER TABLE iceberg_tables DISABLE TRIGGER artemis_cold"))
            connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = :cold"), {"cold": cold})
            connection.execute(text("ALTER TABLE iceberg_tables ENABLE ALWAYS TRIGGER artemis_cold"))
            connection.execute(text("TRUNCATE artemis_cold.publications"))
        other = make_table(lifecycle, "y_2023", 3)
        others = ids_of(lifecycle, other)
        of_other = _prints(lifecycle, other, others)
        lifecycle.expire(other)
        done = lifecycle.recover_archive(table_uuid if dropped else table, who="ann", why="a backup")
        assert done.cold_table == table and len(done.published) > 2
        assert lifecycle.recover_archive(table_uuid if dropped else table, who="ann", why="again").published == ()
        names = {each.name for each in (lifecycle.cold_tables(table_uuid) or ())}
        assert f"db.y_2023__{table_uuid[:8]}" in names and "db.y_2023" not in names
        for name, expected in ((other, of_other), *(() if dropped else ((table, before),))):
            assert {each: fingerprint(lifecycle.read(name, snapshot_id=each)) for each in expected} == expected
        found = lifecycle.cold_tables(table_uuid)
        for each in ids[:-1]:
            held = None if found is None else found.holding(each)
            assert held is not None
            rows = spark.sql(f"SELECT * FROM {cold}.{held.name} VERSION AS OF {each}")
            assert fingerprint(rows) == before[each]
        if not dropped:
            spark.sql(f"INSERT OVERWRITE {live}.{table} SELECT * FROM {live}.{table} LIMIT 1")
            assert lifecycle.expire(table).failed == 0
