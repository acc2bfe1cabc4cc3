from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog
from sqlalchemy import make_url, text

from artemis_lifecycle.catalogs import commit
from artemis_lifecycle.catalogs.commit import BaseState, BranchChange, Change, TagChange, commit_with_retry
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import catalog_conf, ingest_catalog, pyiceberg_properties
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import (
    BadInput,
    CommitConflict,
    CommitStateUnknown,
    EnvironmentMissing,
    NoSuchSnapshot,
    NoSuchTable,
    ReferencedSnapshot,
    Refused,
    StorageError,
)
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle.spark.jvm import java_longs
from artemis_lifecycle_tests.catalogs.conftest import MakeTable, append, jvm_table, snapshot_ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOREVER = 2**63 - 1


@pytest.fixture
def live(config: LifecycleConfig) -> str:
    return config.catalogs.live.name


def _metadata(location: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(location.removeprefix("file:")).read_text())
    return found


def _metadata_files(location: str) -> set[str]:
    return {f"file:{path}" for path in Path(location.removeprefix("file:")).parent.glob("*.metadata.json")}


class Meanwhile:
    """Does something between the guard and the swap of the first attempts, then lets the swap go on as it is."""

    def __init__(self, *actions: Callable[[Callable[[], None]], None]) -> None:
        self._actions = list(actions)
        self._swap = commit._swap

    def __call__(self, operations: Any, base: Any, updated: Any) -> None:
        def swap() -> None:
            self._swap(operations, base, updated)

        if self._actions:
            self._actions.pop(0)(swap)
        else:
            swap()


def _raising(spark: SparkSession, java_exception: Any) -> None:
    jvm: Any = spark._jvm
    kind = jvm.java.lang.Class.forName("java.lang.RuntimeException")
    jvm.org.apache.iceberg.util.ExceptionUtil.castAndThrow(java_exception, kind)


def _unknown(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    _raising(spark, jvm.org.apache.iceberg.exceptions.CommitStateUnknownException(jvm.java.io.IOException("timed out")))


# --- what a commit does ---------------------------------------------------------------------------------------------


def test_an_expiration_says_what_icebergs_own_would(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader
) -> None:
    table = make_table("same", 5)
    spark.sql(f"CALL {live}.system.compute_table_stats('{table}')")
    doomed_stats = snapshot_ids(spark, live, table)[-1]
    append(spark, f"{live}.{table}", 6)
    spark.sql(f"ALTER TABLE {live}.{table} CREATE TAG kept AS OF VERSION {snapshot_ids(spark, live, table)[0]}")
    spark.sql(f"ALTER TABLE {live}.{table} CREATE TAG gone AS OF VERSION {snapshot_ids(spark, live, table)[1]}")
    before = reader.entry(table)
    assert [file["snapshot-id"] for file in _metadata(before.metadata_location)["statistics"]] == [doomed_stats]
    doomed = [*snapshot_ids(spark, live, table)[1:3], doomed_stats]

    jvm: Any = spark._jvm
    peer_name = jvm.org.apache.iceberg.catalog.TableIdentifier.parse("space.same_peer")
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(spark._jsparkSession, live)
    peer = loaded.registerTable(peer_name, before.metadata_location)
    peer.manageSnapshots().removeTag("gone").commit()
    removal = peer.expireSnapshots().cleanExpiredFiles(False).expireOlderThan(0)
    for snapshot in doomed:
        removal = removal.expireSnapshotId(snapshot)
    removal.commit()

    result = commit_with_retry(
        spark, live, table, lambda base: Change(expire_snapshot_ids=doomed, remove_refs=["gone"])
    )
    assert (result.attempts, result.changed) == (1, True)
    assert result.base_metadata_location == before.metadata_location
    after = reader.entry(table)
    assert (after.metadata_location, after.previous_metadata_location) == (
        result.metadata_location,
        before.metadata_location,
    )
    ours, theirs = _metadata(result.metadata_location), _metadata(reader.entry("space.same_peer").metadata_location)
    for own in (ours, theirs):
        for key in ("last-updated-ms", "metadata-log"):
            del own[key]
    assert ours == theirs
    assert ours["statistics"] == []
    # The log ends where the first removed snapshot was current; a parent that is gone is still named.
    assert [entry["snapshot-id"] for entry in ours["snapshot-log"]] == snapshot_ids(spark, live, table)[-1:]
    assert ours["snapshots"][-1]["parent-snapshot-id"] == doomed_stats


def test_a_table_of_format_version_3_keeps_what_only_v3_has(
    spark: SparkSession, live: str, make_table: MakeTable
) -> None:
    table = make_table("third", 3, **{"format-version": "3"})
    doomed = snapshot_ids(spark, live, table)[:1]
    before = _metadata(jvm_table(spark, live, table).operations().current().metadataFileLocation())
    result = commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=doomed))
    after = _metadata(result.metadata_location)
    assert after["format-version"] == 3
    assert after["next-row-id"] == before["next-row-id"] == 3
    assert after["snapshots"] == before["snapshots"][1:]


@pytest.mark.parametrize("version", ["1", "2", "3", "4"])
def test_sort_orders_leave_and_nothing_else_differs(
    spark: SparkSession, config: LifecycleConfig, make_table: MakeTable, reader: CatalogReader, version: str
) -> None:
    live = config.catalogs.live.name
    table = make_table("ordered", 1, **{"format-version": version, "write.parquet.compression-codec": "snappy"})
    full = f"{live}.{table}"

    def append_in_order(number: int) -> None:
        # By Spark, whose files name the table's sort order.
        spark.sql(f"SELECT /*+ COALESCE(1) */ {number} AS id").writeTo(full).append()

    for order in ("id", "id DESC", "id ASC NULLS LAST"):
        spark.sql(f"ALTER TABLE {full} WRITE ORDERED BY {order}")
        append_in_order(1)
    spark.sql(f"ALTER TABLE {full} CREATE BRANCH work RETAIN 9 DAYS")
    spark.sql(f"CALL {live}.system.compute_table_stats('{table}')")
    before = reader.entry(table).metadata_location
    doomed = snapshot_ids(spark, live, table)[:2]

    jvm: Any = spark._jvm
    name = jvm.org.apache.iceberg.catalog.TableIdentifier.parse("space.ordered_peer")
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(spark._jsparkSession, live)
    removal = loaded.registerTable(name, before).expireSnapshots().cleanExpiredFiles(False).expireOlderThan(0)
    for snapshot in doomed:
        removal = removal.expireSnapshotId(snapshot)
    removal.commit()

    # Order 2 is in use, which the expiration's guard would not allow: readers do not need it.
    wanted = Change(expire_snapshot_ids=doomed, remove_order_ids=[1, 2])
    result = commit_with_retry(spark, live, table, lambda base: wanted)
    assert (result.attempts, result.changed) == (1, True)
    ours, theirs = _metadata(result.metadata_location), _metadata(reader.entry("space.ordered_peer").metadata_location)
    assert [log["metadata-file"] for log in ours["metadata-log"]] == [
        *(log["metadata-file"] for log in _metadata(before)["metadata-log"]),
        before,
    ]
    assert ours["metadata-log"][-1]["timestamp-ms"] == _metadata(before)["last-updated-ms"] < ours["last-updated-ms"]
    assert [order["order-id"] for order in theirs["sort-orders"]] == [0, 1, 2, 3]
    assert [order["order-id"] for order in ours["sort-orders"]] == [0, 3]
    assert len(ours["statistics"]) == 1 and ours["refs"].keys() == {"main", "work"}
    for own in (ours, theirs):
        for key in ("last-updated-ms", "metadata-log", "sort-orders"):
            del own[key]
    assert ours == theirs

    spark.sql(f"REFRESH TABLE {full}")
    append_in_order(2)
    spark.sql(f"DELETE FROM {full} WHERE id = 0")
    spark.sql(f"ALTER TABLE {full} WRITE ORDERED BY id DESC")
    append_in_order(3)
    orders = spark.sql(f"SELECT DISTINCT sort_order_id FROM {full}.files").collect()
    assert {row.sort_order_id for row in orders} >= {1, 2, 3, 4}
    assert sorted(row.id for row in spark.table(full).collect()) == [1, 1, 1, 2, 3]
    if version == "4":
        return  # pyiceberg does not read it.
    other = load_catalog(live, **pyiceberg_properties(config.catalogs.live)).load_table(table)
    rows = other.scan(row_filter="id > 1").to_arrow()
    assert rows.num_rows == 2
    if version != "3":  # pyiceberg does not write it.
        other.append(rows)
        spark.sql(f"REFRESH TABLE {full}")
        assert spark.table(full).where("id > 1").count() == 4


def test_sort_orders_alone_make_no_commit(spark: SparkSession, live: str, make_table: MakeTable) -> None:
    table = make_table("alone", 1)
    for order in ("id", "id DESC"):
        spark.sql(f"ALTER TABLE {live}.{table} WRITE ORDERED BY {order}")
    assert not commit_with_retry(spark, live, table, lambda base: Change(remove_order_ids=[1])).changed


def test_nothing_to_change_makes_no_commit(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader
) -> None:
    table = make_table("idle", 1)
    before = reader.entry(table)
    for nothing in (None, Change(), Change(expire_snapshot_ids=[]), Change(set_properties={})):
        result = commit_with_retry(spark, live, table, lambda base, nothing=nothing: nothing)  # type: ignore[misc]
        assert (result.metadata_location, result.attempts, result.changed) == (before.metadata_location, 0, False)
    assert reader.entry(table) == before


def test_the_guard_is_given_the_very_base_that_the_swap_compares(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader
) -> None:
    table = make_table("guarded", 2)
    seen: list[BaseState] = []

    def guard(base: BaseState) -> Change:
        seen.append(base)
        return Change(expire_snapshot_ids=[_metadata(base.metadata_location)["snapshots"][0]["snapshot-id"]])

    before = reader.entry(table)
    result = commit_with_retry(spark, live, table, guard)
    assert [base.metadata_location for base in seen] == [before.metadata_location] == [result.base_metadata_location]
    assert seen[0].table_uuid == _metadata(before.metadata_location)["table-uuid"]


def test_tags_branches_and_properties_are_set(spark: SparkSession, live: str, make_table: MakeTable) -> None:
    table = make_table("refs", 3, **{"old": "x"})
    first, second, third = snapshot_ids(spark, live, table)
    spark.sql(f"ALTER TABLE {live}.{table} CREATE BRANCH audit AS OF VERSION {first} RETAIN 9 DAYS")
    result = commit_with_retry(
        spark,
        live,
        table,
        lambda base: Change(
            set_tags=[
                TagChange("for-ever", first, FOREVER),
                TagChange("short", second, 60_000),
                TagChange("plain", third),
            ],
            set_branches=[BranchChange("audit", second), BranchChange("fresh", first)],
            set_properties={"new": "y"},
            remove_properties=["old"],
        ),
    )
    after = _metadata(result.metadata_location)
    assert after["refs"]["for-ever"] == {"snapshot-id": first, "type": "tag", "max-ref-age-ms": FOREVER}
    assert after["refs"]["short"] == {"snapshot-id": second, "type": "tag", "max-ref-age-ms": 60_000}
    assert after["refs"]["plain"] == {"snapshot-id": third, "type": "tag"}
    assert after["refs"]["audit"]["snapshot-id"] == second
    assert after["refs"]["audit"]["max-ref-age-ms"] == 9 * 86_400_000
    assert after["refs"]["fresh"] == {"snapshot-id": first, "type": "branch"}
    assert after["properties"]["new"] == "y"
    assert "old" not in after["properties"]


def test_thousands_of_snapshots_cross_the_gateway_in_one_call(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    ids = [*range(49_000), *range(2**62, 2**62 + 1000)]
    started = time.monotonic()
    found = java_longs(jvm, ids)
    assert time.monotonic() - started < 3
    assert found.size() == len(ids)
    kinds = {found.iterator().next().__class__, int}
    assert kinds == {int}
    assert found.contains(jvm.java.lang.Long.valueOf(2**62 + 5))


def test_a_commit_works_from_another_thread(spark: SparkSession, live: str, make_table: MakeTable) -> None:
    table = make_table("threads", 2)
    doomed = snapshot_ids(spark, live, table)[:1]
    attempts: list[int] = []

    def work() -> None:
        attempts.append(commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=doomed)).attempts)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert attempts == [1]


# --- what it refuses ------------------------------------------------------------------------------------------------


def test_a_ref_that_stays_protects_its_snapshot_though_no_guard_said_so(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader
) -> None:
    table = make_table("held", 3)
    first, _, last = snapshot_ids(spark, live, table)
    spark.sql(f"ALTER TABLE {live}.{table} CREATE TAG evidence AS OF VERSION {first}")
    before = reader.entry(table)
    for doomed, ref in ((first, "evidence"), (last, "main")):
        with pytest.raises(ReferencedSnapshot, match=ref):
            commit_with_retry(spark, live, table, lambda base, doomed=doomed: Change(expire_snapshot_ids=[doomed]))  # type: ignore[misc]
    with pytest.raises(Refused, match="main branch"):
        commit_with_retry(spark, live, table, lambda base: Change(remove_refs=["main"]))
    assert reader.entry(table) == before


def test_what_makes_no_sense_is_refused_before_anything_is_written(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader
) -> None:
    table = make_table("sense", 2)
    first, _ = snapshot_ids(spark, live, table)
    before, files = reader.entry(table), _metadata_files(reader.entry(table).metadata_location)
    with pytest.raises(NoSuchSnapshot, match="4711"):
        commit_with_retry(spark, live, table, lambda base: Change(set_tags=[TagChange("t", 4711)]))
    with pytest.raises(NoSuchSnapshot):
        commit_with_retry(
            spark, live, table, lambda base: Change(expire_snapshot_ids=[first], set_tags=[TagChange("t", first)])
        )
    with pytest.raises(BadInput, match="branch already"):
        commit_with_retry(spark, live, table, lambda base: Change(set_tags=[TagChange("main", first)]))
    with pytest.raises(BadInput, match="not a table identifier"):
        commit_with_retry(spark, live, "sense", lambda base: None)
    with pytest.raises(NoSuchTable, match="no_such"):
        commit_with_retry(spark, live, "space.no_such", lambda base: None)
    with pytest.raises(EnvironmentMissing, match="no_such_catalog"):
        commit_with_retry(spark, "no_such_catalog", table, lambda base: None)
    assert reader.entry(table) == before
    assert _metadata_files(before.metadata_location) == files


def test_a_change_that_icebergs_core_refuses_is_reported_as_refused(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader
) -> None:
    table = make_table("property", 1)
    before = reader.entry(table)
    with pytest.raises(Refused, match="core refuses"):
        commit_with_retry(
            spark, live, table, lambda base: Change(set_properties={"write.metadata.previous-versions-max": "many"})
        )
    assert reader.entry(table) == before


def test_a_catalog_that_does_not_compare_whole_metadata_expires_nothing(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("by_rest", 2)
    first, _ = snapshot_ids(spark, live, table)
    monkeypatch.setattr(commit._Committer, "_compares_whole_metadata", lambda self: False)
    with pytest.raises(Refused, match="whole metadata"):
        commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=[first]))
    # A ref that is set is compared by itself.
    assert commit_with_retry(spark, live, table, lambda base: Change(set_tags=[TagChange("t", first)])).changed
    assert len(snapshot_ids(spark, live, table)) == 2


# --- others at work -------------------------------------------------------------------------------------------------


def test_a_concurrent_append_costs_another_attempt_whose_guard_sees_the_new_base(
    spark: SparkSession,
    live: str,
    make_table: MakeTable,
    reader: CatalogReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_table("race", 3)
    doomed = snapshot_ids(spark, live, table)[:1]
    bases: list[str] = []
    files_seen: list[set[str]] = []

    def other_writer(swap: Callable[[], None]) -> None:
        append(spark, f"{live}.{table}", 99)
        files_seen.append(_metadata_files(reader.entry(table).metadata_location))
        swap()

    monkeypatch.setattr(commit, "_swap", Meanwhile(other_writer))

    def guard(base: BaseState) -> Change:
        bases.append(base.metadata_location)
        return Change(expire_snapshot_ids=doomed)

    result = commit_with_retry(spark, live, table, guard)
    assert (result.attempts, result.changed) == (2, True)
    assert len(set(bases)) == 2
    assert result.base_metadata_location == bases[1]
    assert doomed[0] not in snapshot_ids(spark, live, table)
    assert spark.table(f"{live}.{table}").where("id = 99").count() == 1
    # The metadata file of the lost attempt is gone: all there is, is what was there and what was committed.
    assert _metadata_files(result.metadata_location) == files_seen[0] | {result.metadata_location}


def test_a_session_that_caches_its_tables_commits_on_what_is_current(
    spark: SparkSession, config: LifecycleConfig
) -> None:
    cached = config.catalogs.live.model_copy(update={"name": f"{config.catalogs.live.name}_cached"})
    for key, value in catalog_conf(cached).items():
        spark.conf.set(key, "true" if key.endswith(".cache-enabled") else value)
    spark.sql(f"CREATE NAMESPACE {cached.name}.space")
    spark.sql(f"CREATE TABLE {cached.name}.space.t (id INT) USING iceberg")
    assert spark.table(f"{cached.name}.space.t").count() == 0
    writer = ingest_catalog(cached)
    with writer.load_table("space.t").transaction() as transaction:
        transaction.set_properties(by="another")
    writer.close()
    seen: list[str] = []

    def change(base: BaseState) -> Change:
        seen.append(base.metadata_location)
        return Change(set_properties={"by.us": "too"})

    with CatalogReader(cached) as reader:
        current = reader.entry("space.t").metadata_location
    result = commit_with_retry(spark, cached.name, "space.t", change)
    assert (seen, result.attempts) == ([current], 1)
    assert _metadata(result.metadata_location)["properties"]["by"] == "another"


def test_a_tag_made_between_guard_and_swap_is_never_lost(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("tagged", 3)
    doomed = snapshot_ids(spark, live, table)[0]

    def tagger(swap: Callable[[], None]) -> None:
        spark.sql(f"ALTER TABLE {live}.{table} CREATE TAG evidence AS OF VERSION {doomed}")
        swap()

    monkeypatch.setattr(commit, "_swap", Meanwhile(tagger))

    def guard(base: BaseState) -> Change:
        held = {ref["snapshot-id"] for ref in _metadata(base.metadata_location)["refs"].values()}
        if doomed in held:
            raise Refused(f"snapshot {doomed} is held")
        return Change(expire_snapshot_ids=[doomed])

    with pytest.raises(Refused, match="is held"):
        commit_with_retry(spark, live, table, guard)
    after = _metadata(reader.entry(table).metadata_location)
    assert after["refs"]["evidence"]["snapshot-id"] == doomed
    assert len(after["snapshots"]) == 3
    assert len(_metadata_files(reader.entry(table).metadata_location)) == 5


def test_losing_every_attempt_is_a_conflict_and_leaves_no_file_behind(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("busy", 2)
    doomed = snapshot_ids(spark, live, table)[:1]

    def other_writer(swap: Callable[[], None]) -> None:
        append(spark, f"{live}.{table}", 99)
        swap()

    monkeypatch.setattr(commit, "_swap", Meanwhile(other_writer, other_writer, other_writer))
    with pytest.raises(CommitConflict, match="each of 3 attempts"):
        commit_with_retry(
            spark, live, table, lambda base: Change(expire_snapshot_ids=doomed), attempts=3, longest_wait=0.1
        )
    after = _metadata(reader.entry(table).metadata_location)
    assert len(after["snapshots"]) == 5
    assert _metadata_files(reader.entry(table).metadata_location) == {
        reader.entry(table).metadata_location,
        *(entry["metadata-file"] for entry in after["metadata-log"]),
    }


def test_a_table_made_anew_under_the_name_is_not_mistaken_for_the_old(
    spark: SparkSession, live: str, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("reborn", 2)
    doomed = snapshot_ids(spark, live, table)[:1]

    def replacer(swap: Callable[[], None]) -> None:
        spark.sql(f"DROP TABLE {live}.{table}")
        make_table("reborn", 1)
        swap()

    monkeypatch.setattr(commit, "_swap", Meanwhile(replacer))
    with pytest.raises(NoSuchTable, match="another table"):
        commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=doomed))
    assert len(snapshot_ids(spark, live, table)) == 1


def test_a_table_dropped_meanwhile_is_named(
    spark: SparkSession, live: str, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("dropped", 2)
    doomed = snapshot_ids(spark, live, table)[:1]

    def dropper(swap: Callable[[], None]) -> None:
        spark.sql(f"DROP TABLE {live}.{table}")
        swap()

    monkeypatch.setattr(commit, "_swap", Meanwhile(dropper))
    with pytest.raises(NoSuchTable):
        commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=doomed))


# --- commits that do not say how they ended ---------------------------------------------------------------------------


def test_an_unknown_state_of_a_commit_that_happened_is_found_out(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("happened", 3)
    doomed = snapshot_ids(spark, live, table)[:1]

    def after_it(swap: Callable[[], None]) -> None:
        swap()
        _unknown(spark)

    monkeypatch.setattr(commit, "_swap", Meanwhile(after_it))
    result = commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=doomed))
    assert (result.attempts, result.changed) == (1, True)
    assert result.metadata_location == reader.entry(table).metadata_location


def test_an_unknown_state_is_found_out_under_later_commits_too(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("buried", 3)
    doomed = snapshot_ids(spark, live, table)[:1]
    ours: list[str] = []

    def after_it(swap: Callable[[], None]) -> None:
        swap()
        ours.append(reader.entry(table).metadata_location)
        append(spark, f"{live}.{table}", 98)
        append(spark, f"{live}.{table}", 99)
        _unknown(spark)

    monkeypatch.setattr(commit, "_swap", Meanwhile(after_it))
    result = commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=doomed))
    assert (result.attempts, result.changed, [result.metadata_location]) == (1, True, ours)
    assert ours[0] != reader.entry(table).metadata_location


def test_an_unknown_state_of_a_commit_that_did_not_happen_is_tried_again(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("did_not", 3)
    doomed = snapshot_ids(spark, live, table)[:1]
    monkeypatch.setattr(commit, "_swap", Meanwhile(lambda swap: _unknown(spark)))
    result = commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=doomed))
    assert (result.attempts, result.changed) == (2, True)
    assert result.metadata_location == reader.entry(table).metadata_location


def test_a_commit_that_comes_through_late_is_recognised_as_ours(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("late", 3)
    doomed = snapshot_ids(spark, live, table)[:1]
    under_way: list[Callable[[], None]] = []

    def first(swap: Callable[[], None]) -> None:
        under_way.append(swap)
        _unknown(spark)

    def second(swap: Callable[[], None]) -> None:
        # What the first attempt left in the database is done now; this one's comparison fails.
        under_way[0]()
        swap()

    monkeypatch.setattr(commit, "_swap", Meanwhile(first, second))
    result = commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=doomed))
    assert (result.attempts, result.changed) == (2, True)
    assert result.metadata_location == reader.entry(table).metadata_location
    assert len(_metadata(result.metadata_location)["snapshots"]) == 2


def test_a_commit_without_an_answer_is_unknown_and_keeps_every_file(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("never", 3)
    doomed = snapshot_ids(spark, live, table)[:1]

    def never(swap: Callable[[], None]) -> None:
        _unknown(spark)

    monkeypatch.setattr(commit, "_swap", Meanwhile(never, never))
    with pytest.raises(CommitStateUnknown, match="may still come through"):
        commit_with_retry(
            spark, live, table, lambda base: Change(expire_snapshot_ids=doomed), attempts=2, longest_wait=0.1
        )
    assert len(snapshot_ids(spark, live, table)) == 3


def test_a_log_that_is_too_short_proves_nothing(
    spark: SparkSession, live: str, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("short", 3, **{"write.metadata.previous-versions-max": "1"})
    doomed = snapshot_ids(spark, live, table)[:1]

    def buried(swap: Callable[[], None]) -> None:
        swap()
        append(spark, f"{live}.{table}", 98)
        append(spark, f"{live}.{table}", 99)
        _unknown(spark)

    monkeypatch.setattr(commit, "_swap", Meanwhile(buried))
    with pytest.raises(CommitStateUnknown, match="outcome of the commit is unknown"):
        commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=doomed))


def test_an_unchanged_table_proves_that_a_commit_did_not_happen(
    spark: SparkSession, live: str, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("stands", 3, **{"write.metadata.previous-versions-max": "1"})
    doomed = snapshot_ids(spark, live, table)[:1]

    def only_others(swap: Callable[[], None]) -> None:
        append(spark, f"{live}.{table}", 98)
        append(spark, f"{live}.{table}", 99)
        _unknown(spark)

    monkeypatch.setattr(commit, "_swap", Meanwhile(only_others))
    result = commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=doomed))
    assert (result.attempts, result.changed) == (2, True)
    assert doomed[0] not in snapshot_ids(spark, live, table)


class Line:
    """A line to Postgres that breaks at the catalog's next UPDATE: before the server hears it, or before it is
    answered."""

    def __init__(self, uri: str) -> None:
        url = make_url(uri)
        self._server = (url.host or "", url.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = url.set(host="127.0.0.1", port=self._listener.getsockname()[1]).render_as_string(hide_password=False)
        self.breaks: list[str] = []
        self.broken = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        silent = threading.Event()
        threading.Thread(target=self._to_client, args=(client, server, silent), daemon=True).start()
        with closing(client), closing(server):
            while data := _received(client):
                # The statement's text goes along when it is first prepared, which each new connection does.
                if b"UPDATE iceberg_tables" in data and self.breaks:
                    self.broken += 1
                    if self.breaks.pop(0) == "after":
                        silent.set()
                        server.sendall(data)
                        time.sleep(0.5)
                    client.shutdown(socket.SHUT_RDWR)
                    return
                server.sendall(data)

    @staticmethod
    def _to_client(client: socket.socket, server: socket.socket, silent: threading.Event) -> None:
        while data := _received(server):
            if silent.is_set():
                continue
            try:
                client.sendall(data)
            except OSError:
                return


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


@pytest.fixture
def line(postgres_uri: str) -> Iterator[Line]:
    opened = Line(postgres_uri)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("breaks", "attempts"),
    [
        # Iceberg's own pool tries once more on a new connection.
        (["before"], 1),
        (["before", "before"], 2),
        # The commit happened; the pool's second try then finds another pointer and calls it a lost race.
        (["after"], 1),
        (["before", "after"], 1),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_connection_lost_in_the_commit_never_makes_it_guess(
    spark: SparkSession,
    make_config: Callable[..., LifecycleConfig],
    line: Line,
    postgres_uri: str,
    breaks: list[str],
    attempts: int,
) -> None:
    config = make_config(catalogs={"live": {"uri": line.uri}})
    live, table = config.catalogs.live.name, "space.line"
    spark.sql(f"CREATE NAMESPACE {live}.space")
    spark.sql(f"CREATE TABLE {live}.{table} (id INT) USING iceberg")
    for number in range(3):
        append(spark, f"{live}.{table}", number)
    doomed = snapshot_ids(spark, live, table)[:1]
    before = set(snapshot_ids(spark, live, table))
    line.breaks.extend(breaks)
    result = commit_with_retry(spark, live, table, lambda base: Change(expire_snapshot_ids=doomed), longest_wait=0.1)
    assert line.broken == len(breaks)
    assert (result.attempts, result.changed) == (attempts, True)
    assert set(snapshot_ids(spark, live, table)) == before - set(doomed)
    with CatalogReader(config.catalogs.live) as reader:
        assert reader.entry(table).metadata_location == result.metadata_location
    assert Path(result.metadata_location.removeprefix("file:")).exists()


def test_a_refusal_of_the_database_is_not_retried(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader, postgres_uri: str
) -> None:
    table = make_table("refused", 2)
    doomed = snapshot_ids(spark, live, table)[:1]
    engine = connect(postgres_uri)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'read only, says the trigger'; END $$"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER no BEFORE UPDATE ON iceberg_tables FOR EACH ROW "
                f"WHEN (OLD.catalog_name = '{live}') EXECUTE FUNCTION no()"
            )
        )
    before = reader.entry(table)
    calls: list[str] = []

    def change(base: BaseState) -> Change:
        calls.append(base.metadata_location)
        return Change(expire_snapshot_ids=doomed)

    try:
        with pytest.raises(StorageError, match="read only, says the trigger"):
            commit_with_retry(spark, live, table, change)
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP FUNCTION no CASCADE"))
        engine.dispose()
    assert len(calls) == 1
    assert reader.entry(table) == before


def test_a_warehouse_that_cannot_be_written_is_named(
    spark: SparkSession, live: str, make_table: MakeTable, reader: CatalogReader
) -> None:
    table = make_table("readonly", 2)
    before = reader.entry(table)
    nowhere = f"file:{before.metadata_location.removeprefix('file:')}/below-a-file"
    with pytest.raises(StorageError) as raised:
        commit_with_retry(spark, live, table, lambda base: Change(set_properties={"write.metadata.path": nowhere}))
    assert "below-a-file" in str(raised.value)
    assert raised.value.table == table
    assert reader.entry(table) == before
