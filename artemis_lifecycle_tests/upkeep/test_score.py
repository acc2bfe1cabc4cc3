"""A worse table never has a better score, a fit one has 100, and what is unknown is not counted as fit."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.config.deployment import ClassPrices, Prices
from artemis_lifecycle.config.policies import Checks, HealthLimits, ScoreLimits, TablePolicy
from artemis_lifecycle.upkeep.health import HealthPart, TableHealth, judge_part
from artemis_lifecycle.upkeep.score import PARTS, Rates, StepAge, Upkeep, scored
from artemis_lifecycle_tests.upkeep.test_maintenance import HEALTH

HOUR = timedelta(hours=1)
POLICY = TablePolicy()
RATES = Rates(Prices(classes={"STANDARD": ClassPrices(gb_month=0.02, get_per_1000=0.4, read_per_gb=0)}), "STANDARD")
FIT_FILES = replace(HEALTH, small_files=0, data_bytes=100 << 29, metadata_file_bytes=10_000, snapshots=10)
FIT_UPKEEP = Upkeep(
    expirable_snapshots=0,
    expirable_bytes=0,
    orphan_bytes=0,
    orphan_command="artemis delete-orphans S",
    unrecorded_snapshots=0,
    lineage_at_risk=0.0,
    steps=(
        StepAge("since the last plan", HOUR, 36 * HOUR, "artemis plan ns.t"),
        StepAge("since the last scan", HOUR, 192 * HOUR, "artemis scan"),
    ),
)
counts = st.integers(0, 10_000)
sizes = st.integers(0, 1 << 40)


def score(health: TableHealth, upkeep: Upkeep = FIT_UPKEEP) -> float:
    found = scored(health, upkeep, POLICY, RATES).score
    assert found is not None
    return found


def part(name: str, health: TableHealth, upkeep: Upkeep = FIT_UPKEEP) -> HealthPart:
    return next(each for each in scored(health, upkeep, POLICY, RATES).parts if each.name == name)


def test_a_fit_table_scores_100_and_has_nothing_to_do() -> None:
    found = scored(FIT_FILES, FIT_UPKEEP, POLICY, RATES)
    assert (found.score, found.next_part) == (100.0, None)
    assert [each.name for each in found.parts] == list(PARTS)
    assert {each.score for each in found.parts} == {100.0} and {each.gain for each in found.parts} == {0.0}


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableHealth, Upkeep]:
    """Any table, fit or not."""
    files = draw(counts)
    rewritable = draw(st.integers(0, files))
    manifests = draw(counts)
    snapshots = draw(st.integers(1, 100_000))
    health = replace(
        HEALTH,
        data_files=files,
        data_bytes=draw(sizes),
        rewritable_files=rewritable,
        rewritten_files=draw(st.integers(min(1, rewritable), rewritable)),
        delete_files=draw(counts),
        delete_bytes=draw(sizes),
        manifests=manifests,
        manifest_bytes=draw(sizes) if manifests else 0,
        fewest_manifests=draw(st.integers(1, 100)),
        manifest_list_bytes=draw(sizes),
        metadata_file_bytes=draw(sizes),
        snapshots=snapshots,
    )
    steps = tuple(replace(each, age=draw(st.integers(0, 5_000)) * HOUR) for each in FIT_UPKEEP.steps)
    upkeep = Upkeep(
        expirable_snapshots=draw(st.integers(0, snapshots)),
        expirable_bytes=draw(sizes),
        orphan_bytes=draw(sizes),
        orphan_command="artemis delete-orphans S",
        unrecorded_snapshots=draw(counts),
        lineage_at_risk=draw(st.floats(0, 1)),
        steps=steps,
    )
    return health, upkeep


@given(tables(), st.integers(1, 1_000_000), st.sampled_from(range(10)))
def test_a_worse_figure_never_raises_the_score(table: tuple[TableHealth, Upkeep], more: int, which: int) -> None:
    health, upkeep = table
    worse: tuple[TableHealth, Upkeep] = (
        # One of the table's files is small, or there are more files for the same bytes.
        lambda: (
            replace(health, rewritable_files=min(health.data_files, health.rewritable_files + more)),
            upkeep,
        ),
        lambda: (
            replace(health, data_files=health.data_files + more, rewritable_files=health.rewritable_files + more),
            upkeep,
        ),
        lambda: (replace(health, delete_files=health.delete_files + more), upkeep),
        lambda: (replace(health, delete_bytes=health.delete_bytes + more), replace(upkeep, orphan_bytes=0)),
        lambda: (replace(health, manifests=health.manifests + more), upkeep),
        lambda: (replace(health, metadata_file_bytes=health.metadata_file_bytes + more), upkeep),
        lambda: (
            health,
            replace(upkeep, expirable_snapshots=min(health.snapshots, upkeep.expirable_snapshots + more)),
        ),
        lambda: (
            health,
            replace(upkeep, expirable_bytes=upkeep.expirable_bytes + more),
        ),
        lambda: (health, replace(upkeep, orphan_bytes=(upkeep.orphan_bytes or 0) + more)),
        lambda: (
            health,
            replace(
                upkeep,
                lineage_at_risk=min(1.0, upkeep.lineage_at_risk + more / 1_000_000),
                steps=tuple(replace(each, age=each.age + more * timedelta(minutes=1)) for each in upkeep.steps),
            ),
        ),
    )[which]()
    if which == 3:
        # Delete files are bytes of the table, too: they dilute its orphans and what expired snapshots hold.
        upkeep = replace(upkeep, orphan_bytes=0, expirable_bytes=0)
        worse = worse[0], upkeep
    before, after = score(health, upkeep), score(*worse)
    # Equal ones may differ in the last of their two digits.
    assert 0 <= after <= before + 0.01 <= 100.01


@given(tables())
def test_the_score_is_the_product_of_the_parts_and_a_gain_is_what_the_part_costs(
    table: tuple[TableHealth, Upkeep],
) -> None:
    found = scored(*table, POLICY, RATES)
    shares = [(each.score or 0) / 100 for each in found.parts]
    # Scores are rounded to two digits, so small ones say little.
    if min(shares) > 0.2:
        assert found.score == pytest.approx(100 * prod(shares), abs=0.5)
        for each, share in zip(found.parts, shares, strict=True):
            assert each.gain == pytest.approx((found.score or 0) * (1 / share - 1), abs=0.5)


def test_a_part_says_what_it_costs() -> None:
    """From the price table by hand: 100 files of 512 MB are 10 s of requests and 631.6 s of bytes."""
    small = part("small_files", replace(FIT_FILES, data_bytes=85_000_000, rewritable_files=100, rewritten_files=1))
    # 100 requests and one second of bytes, where one request would do.
    assert small.seconds == pytest.approx(9.9) and small.score == pytest.approx(100 * 1.1 / 11, abs=0.01)
    assert small.per_read == pytest.approx(99 * 0.4 / 1000)
    assert small.next_step == "artemis compact ns.t" and small.per_month is None
    deletes = part("deletes", replace(FIT_FILES, data_bytes=85_000_000, delete_files=110, delete_bytes=2**30))
    assert deletes.per_month == pytest.approx(0.02)
    assert deletes.seconds == pytest.approx(11 + 2**30 / 85e6)
    manifests = part("manifests", replace(FIT_FILES, manifests=107))
    assert manifests.seconds == pytest.approx(10) and manifests.next_step == "artemis compact ns.t --manifests"
    half = replace(FIT_UPKEEP, steps=(StepAge("plan", 72 * HOUR, 36 * HOUR, "artemis plan ns.t"),))
    late = part("staleness", FIT_FILES, half)
    assert (late.score, late.figure, late.next_step) == (50.0, 72.0, "artemis plan ns.t")


def test_what_is_unknown_is_said_and_not_counted_as_fit() -> None:
    never = replace(FIT_UPKEEP, orphan_bytes=None)
    unknown = part("orphan_share", FIT_FILES, never)
    assert (unknown.score, unknown.figure, unknown.next_step) == (None, None, "artemis scan-orphans ns.t")
    assert score(FIT_FILES, never) == pytest.approx(90) and unknown.gain == pytest.approx(10)
    verdict = judge_part(scored(FIT_FILES, never, POLICY, RATES), "orphan_share", Checks())
    assert verdict.passed and "Unknown" in verdict.text


UNFIT = {
    "small_files": (replace(FIT_FILES, data_bytes=0, rewritable_files=100, rewritten_files=1), FIT_UPKEEP),
    "deletes": (replace(FIT_FILES, data_bytes=0, delete_files=2_000), FIT_UPKEEP),
    "manifests": (replace(FIT_FILES, manifests=1_000), FIT_UPKEEP),
    "snapshots": (FIT_FILES, replace(FIT_UPKEEP, expirable_snapshots=9, expirable_bytes=1 << 40)),
    "metadata_size": (replace(FIT_FILES, metadata_file_bytes=4 << 30), FIT_UPKEEP),
    "orphan_share": (FIT_FILES, replace(FIT_UPKEEP, orphan_bytes=1 << 40)),
    "lineage": (FIT_FILES, replace(FIT_UPKEEP, unrecorded_snapshots=10, lineage_at_risk=0.95)),
    "staleness": (
        FIT_FILES,
        replace(FIT_UPKEEP, steps=(StepAge("plan", 3_600 * HOUR, 36 * HOUR, "artemis plan ns.t"),)),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_each_part_has_its_own_check_with_its_own_limits(name: str) -> None:
    found = scored(*UNFIT[name], POLICY, RATES)
    mine = next(each for each in found.parts if each.name == name)
    assert mine.score is not None and mine.score < 50 and found.next_part == mine

    def limits(warn: float, error: float, seconds: float = 0) -> Checks:
        health = HealthLimits(seconds=seconds).model_copy(update={name: ScoreLimits(warn=warn, error=error)})
        return Checks(health=health)

    red = judge_part(found, name, limits(100, mine.score + 1))
    assert (red.passed, red.warns) == (False, False) and str(mine.next_step) in red.text
    warned = judge_part(found, name, limits(mine.score + 1, mine.score))
    assert (warned.passed, warned.warns) == (False, True)
    assert judge_part(found, name, limits(mine.score, 0)).passed
    assert all(judge_part(found, other, Checks()).passed for other in PARTS if other != name)
    few = Checks(health=HealthLimits(wasted_bytes=1 << 41).model_copy(update={name: ScoreLimits(warn=100, error=100)}))
    if name in ("snapshots", "orphan_share"):
        assert judge_part(found, name, few).passed
    # What costs people no time that they notice is not reported, whatever its score.
    unnoticed = judge_part(found, name, limits(100, 100, seconds=1e9)).passed
    assert unnoticed == (name in ("small_files", "deletes", "manifests", "metadata_size"))
