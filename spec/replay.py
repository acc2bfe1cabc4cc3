"""Replays traces of real tables against the model in lifecycle.pml: is what the product did a run of the model?

A history is what the foreign-actor machine wrote (artemis_lifecycle_tests/foreign/trace.py): for each step of the
product, and for what others did between two of them, which facts came and went, what was sealed, and what became of
files. A trace is its projection on one path, for one table whose plans or scans have that path. Its entries are facts,
which are others' affair, and actions of the product. SPIN says whether the model has a run with these entries, and how
far it goes if it has none. Standard library only. docs/model.md says what the projection leaves out.

    python spec/replay.py HISTORY… [--keep FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OLD, NEW = 1, 2
_NAMES = (
    *("OLD", "NEW", "IN_OLDER", "IN_KEPT", "NAMED_BY_REF", "ON_HOLD", "BEATS", "READ_ELSEWHERE", "YOUNG", "COPIED"),
    *("GIVEN_UP", "KEPT_UNCLEAR", "WAITS_UNCLEAR", "STAYS_UNCLEAR"),
)
BITS = {name: 1 << bit for bit, name in enumerate(_NAMES)}
"""Facts at one time. OLD, NEW: the file at the path. IN_OLDER: a snapshot reads it that no ref names, and that the plan
expires, if there is one. IN_KEPT: another snapshot of the table reads it. READ_ELSEWHERE: another table does. COPIED:
the archive has it. GIVEN_UP: a handoff may omit its snapshots. …_UNCLEAR: something outside of the trace may be why it
is kept for good, waits, or stays."""
FACTS = 1000

EXPIRER = {
    "PLANNED": ("plans the expiration of S0",),
    "HANDED_OFF": ("hands the plan off, cold has its snapshots",),
    "SWAPPED": ("swaps the pointer, the snapshots leave the table",),
    "RECORDED": ("records its commit", "finds its snapshots gone, and takes the plan for committed"),
    "OLD_DELETED": ("deletes file 1", "deletes file 1, and dies before it says so"),
    "NEW_DELETED": ("deletes file 2", "deletes file 2, and dies before it says so"),
    "KEPT": ("keeps file 1 for good", "keeps file 2 for good"),
    "WAITS": ("file 1 waits", "file 2 waits"),
    "GONE": ("finds file 1 gone",),
    "PLAN_DONE": ("the plan is done",),
    "": (
        *("reads the pointer to commit", "lost the swap, tries again", "looks at the plan's files", "begins to delete"),
        *("checks file 1: it may go", "checks file 2: it may go", "a hold stops it"),
        *("copies file 1 into quarantine", "copies file 2 into quarantine"),
    ),
}
SCANNER = {
    "OLD_SCANNED": ("judges what it listed, and seals the orphans: file 1",),
    "NEW_SCANNED": ("judges what it listed, and seals the orphans: file 2",),
    "OLD_SWEPT": ("deletes file 1",),
    "NEW_SWEPT": ("deletes file 2",),
    "STAYS": ("file 1 is gone, or stays", "file 2 is gone, or stays"),
    "": (
        *("lists the table's folders", "begins to delete", "checks file 1: it may go", "checks file 2: it may go"),
        *("a hold, or the clock, stops it", "the scan is done", "another night"),
    ),
}
SENTENCES = [
    (name, f"{who}: {words}")
    for who, actions in (("expirer", EXPIRER), ("scanner", SCANNER))
    for name, each in actions.items()
    for words in each
] + [
    ("", "clock: the grace is over"),
    ("CLOSED", "person: closes the plan, or another takes its place"),
    ("LEFT_ALONE", "person: leaves the scan alone"),
    # The model has no such step.
    ("TAKEN", "product: deletes the file, and is not at its deletion"),
]
ENTRIES = {name: number for number, name in enumerate(dict.fromkeys(["", "END", *(name for name, _ in SENTENCES)]))}
"""By name. The model's own sentences say which action takes which; those without a name no trace can see."""

Trace = tuple[str | int, ...]
"""Names of actions, and facts as numbers."""


def in_words(entry: str | int) -> str:
    if isinstance(entry, int):
        return "facts: " + (", ".join(name for name, bit in BITS.items() if entry & bit) or "none")
    return next((words for name, words in SENTENCES if name == entry), entry)


@dataclass(frozen=True)
class Projected:
    """A trace of one path of one table, and the turns of its entries. `ends`: why it ends before its history does."""

    kind: str
    trace: Trace
    table: str
    path: str
    turns: tuple[int, ...]
    ends: str = ""

    def said(self, refused: int) -> str:
        """In words, with an arrow at the entry that the model does not allow."""
        words = [in_words(each) for each in self.trace]
        words.append("the end" if refused == len(words) else "")
        lines = [
            f"{'→' if at == refused else ' '} {turn:3} {each}"
            for at, (turn, each) in enumerate(zip((*self.turns, 0), words, strict=True))
            if each
        ]
        return "\n".join((f"{self.path}, of table {self.table} ({self.kind}):", *lines))


# --- the checker ------------------------------------------------------------------------------------------------------

KINDS = {"cold": ("COLD=1",), "single": (), "quarantine": ("COLD=1", "QUARANTINE=1")}
"""Of tables: their policies are configurations of the model."""


@dataclass
class Replayer:
    """The model, compiled once for each kind of table, below `folder`. What it said of a trace is kept."""

    folder: Path
    built: dict[str, Path] = field(default_factory=dict)
    known: dict[tuple[str, Trace], int | None] = field(default_factory=dict)

    def replay(self, kind: str, traces: Iterable[Trace]) -> dict[Trace, int | None]:
        """Of each trace the place of the first entry that the model does not allow; None where it allows all of it."""
        asked = list(dict.fromkeys(traces))
        new = [each for each in asked if (kind, each) not in self.known]
        for start in range(0, len(new), 30_000):
            part = new[start : start + 30_000]
            self.known.update(zip([(kind, each) for each in part], self._replayed(kind, part), strict=True))
        return {each: self.known[kind, each] for each in asked}

    def refused(self, projected: Iterable[Projected]) -> Iterator[tuple[Projected, int]]:
        """Those that are no run of the model, each with the place of the first entry that it does not allow."""
        of_kind = defaultdict[str, list[Projected]](list)
        for each in projected:
            of_kind[each.kind].append(each)
        for kind, found in of_kind.items():
            replayed = self.replay(kind, [each.trace for each in found])
            yield from ((each, at) for each in found if (at := replayed[each.trace]) is not None)

    def _replayed(self, kind: str, traces: Sequence[Trace]) -> Iterator[int | None]:
        lines = [str(len(SENTENCES)), *(f"{ENTRIES[name]} {words}" for name, words in SENTENCES), str(len(traces))]
        for trace in traces:
            numbers = [each + FACTS if isinstance(each, int) else ENTRIES[each] for each in (*trace, "END")]
            lines.append(" ".join(map(str, (len(numbers), *numbers))))
        place = self._built(kind)
        (place / "traces").write_text("\n".join(lines))
        said = _call([str(place / "pan"), "-E", "-m100000", "-w22"], place, TRACES="traces")
        found = re.findall(r"^TRACE (\d+) (\d+)$", said, re.MULTILINE)
        if len(found) != len(traces) or "errors: 0" not in said:
            raise SystemExit(f"The checker did not end:\n{said[-2000:]}")
        for at, length in found:
            yield None if int(at) == int(length) - 1 else int(at)

    def _built(self, kind: str) -> Path:
        if kind not in self.built:
            place = self.folder / kind.replace(" ", "-")
            place.mkdir(parents=True)
            for name in ("lifecycle.pml", "replay.h"):
                shutil.copy(HERE / name, place)
            numbers = {**BITS, "FACTS": FACTS, **{name: number for name, number in ENTRIES.items() if name}}
            defines = ["REPLAY", "PLANS=200", "CRASHES=200", *KINDS[kind]]
            defines += [f"{name}={number}" for name, number in numbers.items() if name not in ("OLD", "NEW")]
            _call(["spin", "-a", *(f"-D{each}" for each in defines), "lifecycle.pml"], place)
            how = ["-DBFS", "-DSAFETY", "-DNOCLAIM", "-DNOREDUCE", "-DMEMLIM=4000"]
            _call(["gcc", "-O0", "-w", *how, "-o", "pan", "pan.c"], place)
            self.built[kind] = place
        return self.built[kind]


def _call(command: list[str], place: Path, **variables: str) -> str:
    done = subprocess.run(command, cwd=place, env=os.environ | variables, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


# --- the projection ---------------------------------------------------------------------------------------------------

STAGES = ("open", "handed_off", "committed", "deleting", "done")
AT_WORK = ("open", "handed_off", "committed", "deleting")
WAITING = ("in_flight", "held", "open_plan", "open_scan", "copy_missing", "identity_unproven", "unread_reader")
"""Reasons for which the product keeps an expired file for now; what it keeps for another one, it keeps for good."""
KNOWN = (
    "reachable",
    "another_file",
    "identity_unproven",
    "in_flight",
    "open_plan",
    "open_scan",
    "copy_missing",
    "too_young",
)
"""Reasons that the facts have. Others are of places and of other systems: whatever the model says, it is kept."""
UNCLEAR = BITS["KEPT_UNCLEAR"] | BITS["WAITS_UNCLEAR"] | BITS["STAYS_UNCLEAR"]
FOR_NOW = BITS["WAITS_UNCLEAR"] | BITS["STAYS_UNCLEAR"]
TAKES = ("delete_dropped", "purge_quarantine", "undelete", "second")
"""Steps that are outside of the projection; the last is of another deployment."""
METADATA = ".metadata.json"


class _World:
    """The facts of one time, by what they are asked for."""

    def __init__(self) -> None:
        self.sets: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
        self.names: dict[int, str] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.of_file: dict[int, list[str]] = defaultdict(list)
        self.state: dict[str, str] = {}
        self.pairs: dict[tuple[str, str, int], _Pair] = {}

    def seal(self, sealed: dict[str, dict[str, Any]]) -> None:
        for job, each in sealed.items():
            self.jobs[job] = {**each, "files": set(each["files"]), "snapshots": set(each["snapshots"])}
            for file in each["files"]:
                self.of_file[file].append(job)

    def change(self, line: dict[str, Any]) -> Iterator[_Pair]:
        """Take over a line's facts; return the pairs that they are about."""
        files, tables = set[int](), set[str]()
        for kind, facts in (("went", line["went"]), ("came", line["came"])):
            for name, *values in facts:
                key, value = _keyed(name, values)
                if name == "unsure" and kind == "went":
                    continue  # The product was not told that nobody wants that metadata any more.
                if name in ("plan", "scan"):
                    job, state = values
                    if kind == "came":
                        self.state[job] = state
                    elif self.state.get(job) == state:
                        del self.state[job]
                    files |= self.jobs[job]["files"] if job in self.jobs else set()
                    continue
                (self.sets[key].add if kind == "came" else self.sets[key].discard)(value)
                if name == "reads":
                    table, _, file = values
                    reads = self.sets["reads", table, file]
                    (self.sets["readers", file].add if reads else self.sets["readers", file].discard)(table)
                    files.add(file)
                elif name in ("there", "stat", "young", "unsure"):
                    files.add(values[0])
                elif name in ("named", "newest", "ref", "place", "snapshot"):
                    tables.add(values[0].partition(" ")[0])
                else:
                    tables |= {table for table, _, _ in self.pairs}
        files.update(file for each in line["judged"].values() for file in map(int, each))
        files.update(file for job in line["sealed"] for file in self.jobs[job]["files"])
        for (table, _, file), pair in self.pairs.items():
            if table in tables or file in files:
                yield pair


def _keyed(name: str, values: list[Any]) -> tuple[tuple[Any, ...], Any]:
    if name == "reads":
        return (name, values[0], values[2]), values[1]
    if name in ("held", "beats"):
        return (name,), tuple(values)
    return ((name, values[0]), values[1]) if len(values) == 2 else ((name,), values[0] if values else True)


class _Pair:
    """A path of a table, and its trace so far. `plan`, `scan`: the jobs that the trace is about. What the table's uuid
    has under another name is another table."""

    def __init__(self, world: _World, table: str, name: str, file: int) -> None:
        self._world, self.table, self.name, self.file = world, table, name, file
        self.ended: list[Projected] = []
        self._begin()

    def _begin(self) -> None:
        self.kind = ""
        self.plan: str | None = None
        self.scan: str | None = None
        self.has_scanned = self.is_given_up = False
        self.snapshots: set[int] = set()
        self.contents: list[str] = []
        self.stat: set[str] = set()
        self.settled: set[str] = set()
        self.known = -1
        self.entries: list[str | int] = []
        self.turns: list[int] = []

    def end(self, why: str = "") -> None:
        acts = [at for at, entry in enumerate(self.entries) if isinstance(entry, str)]
        if acts:
            # Of what was before the first one, the last facts count.
            part, path = slice(acts[0] - 1, acts[-1] + 1), self._world.names[self.file]
            entries, turns = tuple(self.entries[part]), tuple(self.turns[part])
            self.ended.append(Projected(self.kind or "cold", entries, self.table, path, turns, why))
        self._begin()

    def _act(self, turn: int, entry: str) -> None:
        if entry:
            self.entries.append(entry)
            self.turns.append(turn)

    # --- facts ------------------------------------------------------------------------------------------------------

    @property
    def there(self) -> str | None:
        return next(iter(self._world.sets["there", self.file]), None)

    @property
    def own(self) -> str:
        """The table in the catalog, which may have been renamed."""
        names = self._world.sets["named", self.table]
        name = next(iter(names)) if len(names) == 1 else self.name
        return f"{self.table} {name}"

    def readers(self) -> set[int]:
        return self._world.sets["reads", self.own, self.file]

    def facts(self) -> int:
        sets, table, own, file, found = self._world.sets, self.table, self.own, self.file, 0
        if self.there is not None:
            if self.there not in self.contents:
                self.contents.append(self.there)
            found |= OLD if self.there == self.contents[0] else NEW
        readers, named = self.readers(), sets["newest", own] | sets["ref", own]
        held = {snapshot for each, snapshot in sets["held",] if each == table}
        if self.plan is None:
            older, kept = readers - named, readers & named
            is_held = "" in held or not held <= sets["archived",] | sets["snapshot", own]
        else:
            expires = self._world.jobs[self.plan]["snapshots"]
            older, kept = readers & expires, readers - expires
            found |= BITS["NAMED_BY_REF"] * bool(older & named)
            is_held = "" in held or bool(held & expires)
        path, beats = self._world.names[file], sets["beats",]
        # One with a prefix covers the prefix, and the metadata's folders.
        is_beating = (table, "") in beats and any(path.startswith(f"{place}/") for place in sets["place", own])
        for name, is_so in (
            ("IN_OLDER", older),
            ("IN_KEPT", kept),
            ("ON_HOLD", is_held),
            ("BEATS", is_beating),
            ("READ_ELSEWHERE", sets["readers", file] - {own}),
            ("YOUNG", file in sets["young",]),
            ("COPIED", self._is_copied()),
            ("GIVEN_UP", self.is_given_up),
        ):
            found |= BITS[name] * bool(is_so)
        others = (each for each in self._world.of_file[file] if each not in (self.plan, self.scan))
        if file in sets["unsure",] or sets["blind",] or (self.stat and self.stat != sets["stat", file]):
            found |= UNCLEAR
        elif (
            beats
            or any(each != table for each, _ in sets["held",])
            or any(self._world.state.get(each) in AT_WORK for each in others)
        ):
            found |= FOR_NOW
        elif self.plan is not None and self._world.state.get(self.scan or "") == "deleting":
            # What a scan has begun to delete is no plan's until it is done.
            found |= BITS["WAITS_UNCLEAR"]
        return found

    def _is_copied(self) -> bool:
        sets, name = self._world.sets, self._world.names[self.file].rsplit("/", 1)[1]
        if not self.snapshots or not self.snapshots <= sets["archived",]:
            return False
        # Cold has manifests of its own.
        is_data = name.endswith(".parquet")
        return not is_data or all(any(copy.endswith(name) for copy in sets["copy", each]) for each in self.snapshots)

    def look(self, turn: int, also: int = 0) -> None:
        self._see(turn, self.facts() | also)

    def _see(self, turn: int, found: int) -> None:
        if found != self.known:
            self.entries.append(found)
            self.turns.append(turn)
            self.known = found

    def look_after(self, turn: int) -> None:
        """At what is there now: another file begins another trace, unless a job may still be about the first."""
        is_another = self.there is not None and not {self.there}.issuperset(self.contents)
        if is_another and self.plan is None and self.scan is None:
            self.end()
        elif is_another and self.there != self.contents[-1] and len(self.contents) > 1:
            self.end("a third file is at the path")
        self.look(turn)

    # --- steps ------------------------------------------------------------------------------------------------------

    def others(self, turn: int, before: dict[str, str]) -> None:
        """Others did something."""
        if any(before.get(job) != self._world.state.get(job) for job in (self.plan, self.scan) if job is not None):
            self.end("the operations database was put back")
        self.look_after(turn)

    def mark(self) -> None:
        """Before a step of the product."""
        self._was_there, self._was_read = self.there, self.readers() & self._expires()

    def begin_step(self, turn: int, after: dict[str, str]) -> None:
        """Of a step of the product, before its facts count: which jobs end, and which begin. `after` it they are so."""
        world = self._world
        if self.plan is not None and after.get(self.plan) in ("superseded", "closed", None):
            self._act(turn, "CLOSED")
            self.plan, self._was_read = None, set()
        for job in world.of_file[self.file]:
            of = world.jobs[job]
            is_new = world.state.get(job) in (None, "superseded") and after.get(job) in (*AT_WORK, "done")
            if (of["table"], of["name"]) != (self.table, self.name) or not is_new:
                continue
            if of["kind"] == "scan":
                if self.has_scanned:
                    self._act(turn, "LEFT_ALONE")
                self.look(turn)
                self.scan, self.has_scanned = job, True
                self._act(turn, "NEW_SCANNED" if self.known & NEW else "OLD_SCANNED")
            else:
                kind = {"n": "single", "q": "quarantine"}.get(of["name"], "cold")
                if self.plan is not None or self.kind not in ("", kind):
                    self.end("two plans at once")
                elif self.there is not None and self.there not in self.contents[:1]:
                    self.end("a plan for another file than a scan is about")
                self.kind, self.plan, self.is_given_up = kind, job, False
                self.snapshots = self.readers() & of["snapshots"]
                self.look(turn)
                self._act(turn, "PLANNED")
            self.stat = set(world.sets["stat", self.file])
            self._was_read = self.readers() & self._expires()

    def _expires(self) -> set[int]:
        found: set[int] = set() if self.plan is None else self._world.jobs[self.plan]["snapshots"]
        return found

    def end_step(self, turn: int, line: dict[str, Any], before: dict[str, str]) -> None:
        """And after them: how far the plan is, and what became of the file."""
        world, step = self._world, line["step"]
        state = world.state.get(self.plan or "")
        first = before.get(self.plan or "", "open") if before.get(self.plan or "") in STAGES else "open"
        passed = STAGES[STAGES.index(first) + 1 : STAGES.index(state) + 1] if state in STAGES else ()
        if "handed_off" in passed and self.kind != "single":
            self.is_given_up = not self.snapshots <= world.sets["archived",]
            self._see(turn, self.known | BITS["GIVEN_UP"] * self.is_given_up)
            self._act(turn, "HANDED_OFF")
        if self._was_read and not self.readers() & self._expires() and first in ("open", "handed_off"):
            self._act(turn, "SWAPPED")
            self.known &= ~BITS["IN_OLDER"]
        if "committed" in passed:
            self._act(turn, "RECORDED")
        judged = {job: each[str(self.file)] for job, each in line["judged"].items() if str(self.file) in each}
        mine = {"delete_files": self.plan, "delete_orphans": self.scan, "sweep": self.scan}.get(step)
        # A death may come before the outcome is written.
        asked = [*judged] or [mine or job for job in world.of_file[self.file] if world.state.get(job) == "deleting"]
        strange = [job for job in asked if job not in (self.plan, self.scan) and job in world.jobs]
        if any(world.jobs[job]["table"] == self.table for job in strange):
            self.end("a job of before this trace")
        elif self._was_there is not None and self.there != self._was_there and step not in TAKES and not strange:
            file, how = "NEW" if self.known & NEW else "OLD", "SWEPT" if mine == self.scan else "DELETED"
            self._act(turn, "TAKEN" if mine is None else f"{file}_{how}")
            if mine is not None and (mine == self.scan or judged):
                self.settled.add(mine)
            self.known &= ~(OLD | NEW)
        for job, (outcome, reason) in judged.items():
            if job in self.settled or job not in (self.plan, self.scan):
                continue
            self._settle(turn, job, outcome, reason)
        if "done" in passed:
            self._act(turn, "PLAN_DONE")
            self.plan = None
        if self.scan is not None and world.state.get(self.scan) == "done":
            self.scan = None
        self.look_after(turn)

    def _settle(self, turn: int, job: str, outcome: str, reason: str) -> None:
        """What a deletion has recorded of the file."""
        what = reason.partition(" ")[0]
        is_waiting, is_there = outcome == "kept" and what in WAITING, self.there is not None
        if outcome == "failed" or (is_waiting and not is_there and job == self.plan):
            return
        entry = "GONE"
        if job == self.scan:
            entry = "STAYS"
        elif outcome == "kept" and is_there:
            entry = "WAITS" if is_waiting else "KEPT"
        # A dropped table counts as of each of its states, the facts have it as of one.
        if outcome == "kept" and (what not in KNOWN or reason.startswith("reachable from dropped table ")):
            self.look(turn, UNCLEAR)
        self._act(turn, entry)
        if entry != "WAITS":
            self.settled.add(job)


def project(lines: Iterable[str]) -> Iterator[Projected]:
    """The traces of a history: of each path of each table, while one plan and one scan are about it."""
    history = [json.loads(line) for line in lines]
    world = _World()
    world.names = {int(number): path for line in history for number, path in line["names"].items()}
    sealed = [each for line in history for each in line["sealed"].values() if not each["second"]]
    pairs = {
        (each["table"], each["name"], file)
        for each in sealed
        for file in each["files"]
        if each["kind"] == "scan" or not world.names[file].endswith(METADATA)
    }
    world.pairs = {pair: _Pair(world, *pair) for pair in sorted(pairs)}
    for line in history:
        turn, is_ours = line["turn"], line["step"] != "others"
        world.seal(line["sealed"])
        before = dict(world.state)
        if is_ours:
            after = dict(before)
            for name, *values in line["went"]:
                if name in ("plan", "scan"):
                    after.pop(values[0], None)
            after |= {values[0]: values[1] for name, *values in line["came"] if name in ("plan", "scan")}
            moved = {job for job in after.keys() | before.keys() if after.get(job) != before.get(job)}
            files = {file for job in moved if job in world.jobs for file in world.jobs[job]["files"]}
            for (_, _, file), pair in world.pairs.items():
                pair.mark()
                if file in files:
                    pair.begin_step(turn, after)
        for pair in list(world.change(line)):
            if is_ours:
                pair.end_step(turn, line, before)
            else:
                pair.others(turn, before)
    for pair in world.pairs.values():
        pair.end()
        yield from pair.ended


def parsed(line: str) -> tuple[str, Trace]:
    """A kept trace."""
    kind, *entries = line.split()
    return kind, tuple(int(each) if each.isdigit() else each for each in entries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("histories", nargs="+", type=Path, metavar="HISTORY")
    parser.add_argument("--keep", metavar="FILE", type=Path, help="add their traces to this file, those that it lacks")
    asked = parser.parse_args()
    projected = [each for history in asked.histories for each in project(history.read_text().splitlines())]
    with tempfile.TemporaryDirectory(prefix="artemis-replay-") as folder:
        refused = list(Replayer(Path(folder)).refused(projected))
    print("".join(f"{each.said(at)}\n\n" for each, at in refused), end="")
    different = {" ".join(map(str, (each.kind, *each.trace))) for each in projected}
    print(f"{len(projected):,} traces, {len(different):,} different; {len(refused):,} refused")
    if asked.keep is not None and not refused:
        known = set(asked.keep.read_text().splitlines()) if asked.keep.exists() else set[str]()
        asked.keep.write_text("".join(f"{line}\n" for line in sorted(known | different)))
    sys.exit(bool(refused))


if __name__ == "__main__":
    main()
