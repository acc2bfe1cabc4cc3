"""A proof fails when a row is missing, doubled or changed, and when nothing was read."""

from __future__ import annotations

from itertools import pairwise

import pytest
from pyspark.sql import SparkSession

from examples.mission.proofs import (
    Fingerprint,
    fingerprint,
    prove_cold,
    prove_debris,
    prove_gate,
    prove_in_flight,
    prove_kept,
    prove_restored,
    sample,
)

A, B = Fingerprint(3, "17"), Fingerprint(3, "18")


def test_fingerprint_knows_rows_and_not_their_order(spark: SparkSession) -> None:
    rows = [(1, "x"), (2, None), (3, "z")]

    def of(rows: list[tuple[int | None, str | None]]) -> Fingerprint:
        return fingerprint(spark.createDataFrame(rows, "a int, b string"))

    whole = of(rows)
    assert whole.rows == 3
    assert of(rows[::-1]) == whole
    assert fingerprint(spark.createDataFrame([row[::-1] for row in rows], "b string, a int")) == whole
    # A pair of equal rows is not nothing, as it would be under an exclusive or.
    assert of([*rows, (4, "y"), (4, "y")]) != of([*rows, (5, "y"), (5, "y")])
    assert of([(1, None)]) != of([(None, "1")])
    assert of([(1, "x"), (2, "")]) != of([(1, "x"), (2, None)])
    assert fingerprint(spark.createDataFrame([], "a int")) == Fingerprint(0, "0")


def test_all_are_taken_up_to_the_limit_and_then_a_spread_with_those_that_must_be_in() -> None:
    ids = tuple(range(100, 200))
    assert sample(ids, (), most=100) == ids
    chosen = sample(ids, (117, 7), most=20)
    assert len(chosen) == 20
    assert {100, 117, 199} <= set(chosen) <= set(ids)
    assert list(chosen) == sorted(chosen)
    assert max(later - earlier for earlier, later in pairwise(chosen)) < 15


def test_kept_snapshots_are_proven_by_equal_rows_only() -> None:
    assert prove_kept("t", [1, 2], {1: A, 2: B}, {1: A, 2: B}).holds
    assert not prove_kept("t", [1, 2], {1: A, 2: B}, {1: A, 2: A}).holds
    assert not prove_kept("t", [], {}, {}).holds
    assert "all 2 kept" in prove_kept("t", [1, 2, 3], {1: A, 2: B}, {1: A, 2: B}, {3}).detail
    assert "1 of 2 (sampled)" in prove_kept("t", [1, 2], {1: A}, {1: A}).detail


@pytest.mark.parametrize(
    ("tier", "still_live", "after", "holds"),
    [("cold", False, A, True), ("live", False, A, False), ("cold", True, A, False), ("cold", False, B, False)],
)
def test_cold_is_proven_by_reading_the_same_rows_from_it_alone(
    tier: str, still_live: bool, after: Fingerprint, holds: bool
) -> None:
    assert prove_cold("t", 1, tier, still_live, A, after).holds is holds


def test_nothing_expired_proves_nothing() -> None:
    assert not prove_cold("t", None, "", False, None, None).holds


def test_a_restored_snapshot_is_proven_by_its_rows_and_by_being_a_copy() -> None:
    assert prove_restored("t", 1, 2, 3, A, A).holds
    assert not prove_restored("t", 1, 2, 3, A, B).holds
    assert not prove_restored("t", 1, 1, 3, A, A).holds
    assert not prove_restored("t", 1, 2, 0, A, A).holds


def test_the_writer_in_flight_is_proven_by_its_files_and_its_rows() -> None:
    assert prove_in_flight("t", 2, 2, A, A, 9).holds
    assert not prove_in_flight("t", 2, 1, A, A, 9).holds
    assert not prove_in_flight("t", 2, 2, A, B, 9).holds


def test_debris_goes_or_stays_as_it_should() -> None:
    assert prove_debris("t", "lost commit", 3, 0, should_stay=False).holds
    assert not prove_debris("t", "lost commit", 3, 1, should_stay=False).holds
    assert prove_debris("t", "young file", 1, 1, should_stay=True).holds
    assert not prove_debris("t", "young file", 1, 0, should_stay=True).holds
    assert not prove_debris("t", "lost commit", 0, 0, should_stay=False).holds


def test_the_gate_is_proven_by_refusals_and_by_the_count_of_what_got_in() -> None:
    passed = {"ingest": 7, "rest-client": 1}
    refusals = {"Spark": "lineage …", "REST": "LineageRejected: …"}
    assert prove_gate("t", passed, refusals, 2, expected=2).holds
    assert "REST (LineageRejected" in prove_gate("t", passed, refusals, 2, expected=2).detail
    assert not prove_gate("t", passed, refusals, 1, expected=2).holds
    assert not prove_gate("t", passed, {**refusals, "REST": ""}, 2, expected=2).holds
    assert not prove_gate("t", {**passed, "": 1}, refusals, 2, expected=2).holds
    skipped = prove_gate("t", passed, {"Spark": "lineage …"}, 1, skipped="no network")
    assert skipped.holds and "REST was skipped: no network" in skipped.detail
