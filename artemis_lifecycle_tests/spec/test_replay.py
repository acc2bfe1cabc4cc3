"""Traces of real tables are runs of the model, and what the model forbids is refused.

`traces.txt` has different traces that the foreign-actor machine left (`spec/replay.py HISTORY… --keep FILE`), so that
a change of the model is held against what the product does. The machine replays its own at the end of each seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from artemis_lifecycle_tests.spec.tools import load, require_checker

pytestmark = pytest.mark.seconds

RECORDED = Path(__file__).with_name("traces.txt")
Trace = tuple[str, list[Any]]
"""The kind of the table, and the entries."""

WALK = ["OLD IN_OLDER", "PLANNED", "HANDED_OFF", "SWAPPED", "RECORDED"]
SINGLE = [each for each in WALK if each != "HANDED_OFF"]
WRITTEN = [
    ("cold", [*WALK, "OLD_DELETED", "PLAN_DONE"]),
    ("quarantine", [*WALK, "OLD_DELETED", "PLAN_DONE"]),
    ("single", [*SINGLE, "OLD_DELETED", "PLAN_DONE"]),
    # Others come between.
    ("cold", [*WALK, "OLD COPIED BEATS", "WAITS", "OLD COPIED", "OLD_DELETED", "PLAN_DONE"]),
    ("cold", [*WALK, "OLD COPIED ON_HOLD", "OLD COPIED", "OLD_DELETED", "PLAN_DONE"]),
    ("cold", [*WALK, "OLD", "WAITS", "OLD COPIED", "OLD_DELETED", "PLAN_DONE"]),
    ("cold", [*WALK, "OLD COPIED IN_KEPT", "KEPT", "PLAN_DONE"]),
    ("cold", [*WALK, "OLD COPIED READ_ELSEWHERE", "KEPT", "PLAN_DONE"]),
    ("cold", [*WALK, "NEW COPIED YOUNG", "KEPT", "PLAN_DONE"]),
    ("single", [*SINGLE, "NEW YOUNG", "KEPT", "PLAN_DONE"]),
    ("cold", [*WALK, "COPIED", "GONE", "PLAN_DONE"]),
    ("cold", ["OLD IN_OLDER", "PLANNED", "HANDED_OFF", "OLD COPIED", "RECORDED", "OLD_DELETED"]),
    ("cold", ["OLD IN_OLDER", "PLANNED", "OLD IN_OLDER GIVEN_UP", *WALK[2:], "OLD_DELETED", "PLAN_DONE"]),
    ("cold", ["OLD IN_OLDER", "PLANNED", "CLOSED", *WALK[1:], "OLD_DELETED"]),
    # A scan.
    ("cold", ["OLD YOUNG", "OLD", "OLD_SCANNED", "OLD_SWEPT"]),
    ("cold", ["OLD", "OLD_SCANNED", "OLD IN_KEPT", "STAYS"]),
    ("cold", ["OLD", "OLD_SCANNED", "NEW", "STAYS"]),
    ("cold", ["OLD", "OLD_SCANNED", "LEFT_ALONE", "OLD_SCANNED", "OLD_SWEPT"]),
    ("single", [*SINGLE, "CLOSED", "OLD_SCANNED", "OLD_SWEPT"]),
]
"""Facts stand in one string."""


@pytest.fixture(scope="module")
def replay() -> ModuleType:
    return load("replay")


@pytest.fixture(scope="module")
def replayer(replay: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    require_checker()
    return replay.Replayer(tmp_path_factory.mktemp("replay"))


@pytest.fixture(scope="module")
def traces(replay: ModuleType) -> list[Trace]:
    """Recorded ones, and some that are written here."""

    def entry(each: str) -> Any:
        return each if each in replay.ENTRIES else sum(replay.BITS[name] for name in each.split())

    recorded = [replay.parsed(line) for line in RECORDED.read_text().splitlines()]
    return [
        *((kind, list(trace)) for kind, trace in recorded),
        *((kind, [*map(entry, each)]) for kind, each in WRITTEN),
    ]


def refused(replay: ModuleType, replayer: Any, traces: list[Trace]) -> list[int | None]:
    """At which entry, of each."""
    known = {kind: replayer.replay(kind, [tuple(each) for of, each in traces if of == kind]) for kind in replay.KINDS}
    return [known[kind][tuple(trace)] for kind, trace in traces]


def facts_before(trace: list[Any], at: int) -> int:
    return next(each for each in reversed(trace[:at]) if isinstance(each, int))


def test_traces_are_runs_of_the_model(replay: ModuleType, replayer: Any, traces: list[Trace]) -> None:
    found = refused(replay, replayer, traces)
    assert not [(trace, at) for trace, at in zip(traces, found, strict=True) if at is not None]


Change = Callable[[ModuleType, list[Any], int], list[Any]]
"""Of a trace and the place of a deletion: a beginning of another one, which ends in a deletion that is forbidden."""


def with_facts(*names: str) -> Change:
    """What others did right before the deletion forbids it."""

    def change(replay: ModuleType, trace: list[Any], at: int) -> list[Any]:
        facts = facts_before(trace, at) & ~replay.UNCLEAR & ~replay.BITS["IN_OLDER"] | replay.BITS["COPIED"]
        return [*trace[:at], facts | sum(replay.BITS[name] for name in names), trace[at]]

    return change


def without_copy(replay: ModuleType, trace: list[Any], at: int) -> list[Any]:
    return [*trace[:at], replay.OLD, trace[at]]


def of_another_file(replay: ModuleType, trace: list[Any], at: int) -> list[Any]:
    facts = facts_before(trace, at) & ~replay.UNCLEAR & ~replay.OLD
    return [*trace[:at], facts | replay.NEW | replay.BITS["YOUNG"], trace[at].replace("OLD", "NEW")]


def twice(replay: ModuleType, trace: list[Any], at: int) -> list[Any]:
    return [*trace[: at + 1], trace[at]]


@pytest.mark.parametrize(
    ("deletion", "change"),
    [
        pytest.param("OLD_DELETED", with_facts("IN_KEPT"), id="of a file that the table reads"),
        pytest.param("OLD_DELETED", with_facts("IN_OLDER"), id="of a file whose snapshot is back"),
        pytest.param("OLD_DELETED", with_facts("READ_ELSEWHERE"), id="of a file that another table reads"),
        pytest.param("OLD_DELETED", with_facts("ON_HOLD"), id="during a hold"),
        pytest.param("OLD_DELETED", with_facts("BEATS"), id="during a heartbeat"),
        pytest.param("OLD_DELETED", without_copy, id="without an archived copy"),
        pytest.param("OLD_DELETED", of_another_file, id="of another file at the path"),
        pytest.param("OLD_DELETED", twice, id="of a file that is gone"),
        pytest.param("OLD_SWEPT", with_facts("IN_KEPT"), id="as an orphan, of a file that the table reads"),
        pytest.param("OLD_SWEPT", with_facts("READ_ELSEWHERE"), id="as an orphan, of a file that another table reads"),
        pytest.param("OLD_SWEPT", with_facts("ON_HOLD"), id="as an orphan, during a hold"),
        pytest.param("OLD_SWEPT", with_facts("BEATS"), id="as an orphan, during a heartbeat"),
        pytest.param("OLD_SWEPT", with_facts("YOUNG"), id="as an orphan, of a young file"),
        pytest.param("OLD_SWEPT", of_another_file, id="as an orphan, of another file at the path"),
    ],
)
def test_a_deletion_is_refused(
    replay: ModuleType, replayer: Any, traces: list[Trace], deletion: str, change: Change
) -> None:
    changed = [
        (kind, change(replay, trace, trace.index(deletion)))
        for kind, trace in traces
        if deletion in trace and (change is not without_copy or _is_archived(replay, kind, trace))
    ]
    assert changed
    found = refused(replay, replayer, changed)
    assert not [(trace, at) for (_, trace), at in zip(changed, found, strict=True) if at != len(trace) - 1]


def _is_archived(replay: ModuleType, kind: str, trace: list[Any]) -> bool:
    return kind != "single" and not any(isinstance(each, int) and each & replay.BITS["GIVEN_UP"] for each in trace)


@pytest.mark.parametrize(
    ("deletion", "lacks"),
    [
        ("OLD_DELETED", ["RECORDED"]),
        ("OLD_DELETED", ["SWAPPED", "RECORDED"]),
        ("OLD_DELETED", ["PLANNED", "HANDED_OFF", "SWAPPED", "RECORDED", "CLOSED"]),
        ("OLD_SWEPT", ["OLD_SCANNED", "LEFT_ALONE"]),
    ],
)
def test_a_deletion_without_the_steps_before_it_is_refused(
    replay: ModuleType, replayer: Any, traces: list[Trace], deletion: str, lacks: list[str]
) -> None:
    changed = [(kind, [each for each in trace if each not in lacks]) for kind, trace in traces if deletion in trace]
    assert changed
    assert None not in refused(replay, replayer, changed)


@pytest.mark.parametrize("stays", ["KEPT", "WAITS"])
def test_a_file_that_may_go_does_not_stay_without_a_reason(
    replay: ModuleType, replayer: Any, traces: list[Trace], stays: str
) -> None:
    changed = []
    for kind, trace in traces:
        if "OLD_DELETED" in trace:
            at = trace.index("OLD_DELETED")
            changed.append((kind, [*trace[:at], replay.OLD | replay.BITS["COPIED"], stays]))
    found = refused(replay, replayer, changed)
    assert not [(trace, at) for (_, trace), at in zip(changed, found, strict=True) if at != len(trace) - 1]


def _history(*, is_interrupted: bool) -> list[str]:
    """A file is an orphan, a snapshot comes back that reads it, and that expires."""
    table, snapshot, reads = "uuid n", ["snapshot", "uuid n", 1], ["reads", "uuid n", 1, 0]
    sealed = {"table": "uuid", "name": "n", "files": [0], "second": False}
    lines: list[dict[str, Any]] = [
        {"step": "others", "came": [["named", "uuid", "n"], ["there", 0, "x"], ["newest", table, 2]]},
        {
            "step": "scan_orphans",
            "came": [["scan", "S", "open"]],
            "sealed": {"S": {**sealed, "kind": "scan", "snapshots": []}},
        },
        {"step": "others", "came": [snapshot, reads]},
        {
            "step": "plan_expiration",
            "came": [["plan", "P", "open"]],
            "sealed": {"P": {**sealed, "kind": "plan", "snapshots": [1]}},
        },
        {
            "step": "commit_expiration",
            "went": [["plan", "P", "open"], snapshot, reads],
            "came": [["plan", "P", "committed"]],
        },
        {
            "step": "delete_files",
            "went": [["plan", "P", "committed"]],
            "came": [["plan", "P", "deleting"]],
            "judged": {"P": {0: ["kept", "open_scan"]}},
        },
    ]
    if is_interrupted:
        lines.insert(
            2, {"step": "delete_orphans", "went": [["scan", "S", "open"]], "came": [["scan", "S", "deleting"]]}
        )
    default: dict[str, Any] = {"names": {}, "came": [], "went": [], "sealed": {}, "judged": {}}
    lines[0]["names"] = {0: "/live/db/n/data/part-1.parquet"}
    return [json.dumps({**default, "turn": turn, **line}) for turn, line in enumerate(lines)]


def test_a_plan_waits_for_a_scan_whose_deletion_was_interrupted(replay: ModuleType, replayer: Any) -> None:
    (waits,), (goes,) = (list(replay.project(_history(is_interrupted=each))) for each in (True, False))
    assert waits.trace[-1] == goes.trace[-1] == "WAITS"
    assert list(replayer.refused([waits, goes])) == [(goes, len(goes.trace) - 1)]
