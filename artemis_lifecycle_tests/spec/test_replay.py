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


DEFAULT: dict[str, Any] = {"names": {}, "came": [], "went": [], "sealed": {}, "judged": {}}
PATH = {"names": {0: "/live/db/b/data/part-1.parquet"}}
HAS_FILE = {**PATH, "step": "others", "came": [["named", "uuid", "b"], ["there", 0, "x"], ["newest", "uuid b", 2]]}
IN_SNAPSHOT = [["snapshot", "uuid b", 1], ["reads", "uuid b", 1, 0]]
INTERRUPTED = {"step": "delete_orphans", "went": [["scan", "S", "open"]], "came": [["scan", "S", "deleting"]]}


def _seals(step: str, kind: str, job: str, snapshots: list[int]) -> dict[str, Any]:
    sealed = {"kind": kind, "table": "uuid", "name": "b", "snapshots": snapshots, "files": [0], "second": False}
    return {"step": step, "came": [[kind, job, "open"]], "sealed": {job: sealed}}


def _moves(step: str, of: str, to: str, **also: Any) -> dict[str, Any]:
    """Of the plan."""
    went = [["plan", "P", of], *also.pop("went", ())]
    return {"step": step, "went": went, "came": [["plan", "P", to], *also.pop("came", ())], **also}


SCANNED = _seals("scan_orphans", "scan", "S", [])
HANDED_OFF = _moves("hand_off", "open", "handed_off", came=[["archived", 1], ["copy", 1, "part-1.parquet"]])
WALKED = [
    _seals("plan_expiration", "plan", "P", [1]),
    HANDED_OFF,
    _moves("commit_expiration", "handed_off", "committed", went=IN_SNAPSHOT),
]


def _project(replay: ModuleType, *lines: dict[str, Any]) -> list[Any]:
    return list(replay.project(json.dumps({**DEFAULT, "turn": turn, **line}) for turn, line in enumerate(lines)))


def test_a_plan_waits_for_a_scan_whose_deletion_was_interrupted(replay: ModuleType, replayer: Any) -> None:
    back = {"step": "others", "came": IN_SNAPSHOT}
    waits = _moves("delete_files", "committed", "deleting", judged={"P": {0: ["kept", "open_scan"]}})
    (good,) = _project(replay, HAS_FILE, SCANNED, INTERRUPTED, back, *WALKED, waits)
    (bad,) = _project(replay, HAS_FILE, SCANNED, back, *WALKED, waits)
    assert good.trace[-1] == bad.trace[-1] == "WAITS"
    assert list(replayer.refused([good, bad])) == [(bad, len(bad.trace) - 1)]


def test_a_plan_for_another_file_than_its_scan_listed_begins_a_trace(replay: ModuleType, replayer: Any) -> None:
    again = {"step": "others", "went": [["there", 0, "x"]], "came": [["there", 0, "y"], *IN_SNAPSHOT]}
    found = _project(replay, HAS_FILE, SCANNED, again, *WALKED)
    acts = [[each for each in one.trace if isinstance(each, str)] for one in found]
    assert acts == [["OLD_SCANNED"], ["PLANNED", "HANDED_OFF", "SWAPPED", "RECORDED"]]
    assert not list(replayer.refused(found))
