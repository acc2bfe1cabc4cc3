"""Checks the model of garbage collection in lifecycle.pml with SPIN: `make spec`, or `python spec/check.py`.

With every guard, no scope may have a counterexample. With each guard taken out, its scope must have one; breadth-first
search makes it a shortest one. Writes `result.json`, `counterexamples.md`, and the tables between the markers in
docs/protection.md and docs/model.md. Standard library only. docs/model.md says how to read all of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE / "lifecycle.pml"
RESULT = HERE / "result.json"
COUNTEREXAMPLES = HERE / "counterexamples.md"
DOCS = HERE.parent / "docs"
BEGIN, END = "<!-- spec: begin -->", "<!-- spec: end -->"
MEGABYTES = 4000
"""What one run of the checker may take. A run that would need more fails; none is cut to a sample."""
AT_ONCE = 2
MOST_WORDS = 20
NEEDED = ("spin", "gcc")


@dataclass(frozen=True)
class Scope:
    """A configuration of the model: what is in it, in words, and its definitions. Those of `--large` have more crashes,
    more plans, or more processes."""

    what: str
    defines: tuple[str, ...] = ()
    large: tuple[str, ...] | None = None
    liveness: bool = False
    only_large: bool = False


SCOPES = {
    "PLACES": Scope("a scan; a file of each of 21 kinds in the table's folder; 1 crash"),
    "TABLES": Scope(
        "a table that is dropped, registered, made anew; its deletion, a sweep, a second deployment; 1 crash"
    ),
    "READERS": Scope(
        "1 plan; a reader of each of 8 kinds, dropped, put back, unreadable or held; 1 crash",
        (),
        ("PLANS=2", "CRASHES=2"),
    ),
    "UNDELETE": Scope("1 plan into quarantine, an undelete, a scan, a job; 1 crash", ("QUARANTINE=1",), ("CRASHES=2",)),
    "ORPHANS": Scope("a scan; 2 writers, a hold, a backup, clocks, a stopped worker; 1 crash", (), ("CRASHES=2",)),
    "RESTORE": Scope("1 plan; 2 writers, a tag, a catalog put back; 1 crash", (), ("CRASHES=2",)),
    "EXPIRE": Scope("1 plan; 2 writers, a job, a tool, people, a stopped worker; 1 crash", (), ("CRASHES=2",)),
    "ARCHIVE": Scope(
        "2 plans with a cold tier, a scan; a job, a tool, a cold store that loses; 1 crash", ("COLD=1", "PLANS=2")
    ),
    "WHOLE": Scope("2 tables: 1 plan, a scan, a reader, a writer, a tool; 1 crash", only_large=True),
    "DOOMED": Scope("1 plan; 2 writers, a tool; 1 crash; liveness", liveness=True),
    "LEAKED": Scope("scans without end; 2 writers, a backup; 1 crash; liveness", liveness=True),
}

IN_SCOPE = {
    "EXPIRE": "REREAD DIFFERENCE CAS REFS POLICY HOLDS BEAT_EXPIRE LOCKED FRESH SEALED_AT LOOK",
    "ARCHIVE": "ARCHIVED_FILE MADE_BY OPEN_PLANS UNARCHIVED COPY_HANDOFF COPY_COMMIT COPY_BATCH REUSED TIERS FORGOTTEN "
    "NAMED SEALED",
    "UNDELETE": "JUDGED UNDELETES",
    "READERS": "NEIGHBORS DOTS SIBLINGS COLD_READERS NESSIE NEWER UNREAD UNREAD_NEWEST DROPPED_READER LAST_STATE "
    "DROPPED_NEWER DROPPED_BESIDE SECOND_NAME LOST_COMMITS HELD_READER NO_ANSWER",
    "ORPHANS": "BEAT_ORPHANS AFTER_LISTING AGE CLOCKS LISTED EVIDENCE",
    "PLACES": "REACH OWN_METADATA ATTEMPTS OWN_UNREADABLE HIDDEN ROOTS LAYOUT RECEIPTS VIEWS VIEW_FILES DELTA PAIMON "
    "INSIDE DROPPED_INSIDE UNKNOWN_INSIDE HERE_BEFORE SIBLING_HERE FILE_NAMES FOLDER_NAMES PREFIX LIMITS "
    "GC_ENABLED OWNED",
    "TABLES": "NAME ELSEWHERE ABSENT DEPLOYMENT",
    "RESTORE": "OWN_COMMITS",
    "DOOMED": "DEAD_HOLDER",
}
TOGETHER = {
    "DIFFERENCE": ("REACH",),
    "AFTER_LISTING": ("REREAD", "AGE"),
    "JUDGED": ("SEALED_AT", "LOOK"),
    "VIEWS": ("VIEW_FILES",),
    "SIBLING_HERE": ("HERE_BEFORE",),
}
"""Guards beside which another one is enough: these are taken out with it."""

NO_LOSS = {"OPEN_SCANS": "two deletions of one file cannot lose another; the row keeps one outcome for each file"}

SOURCES = {
    "The catalog's record of its deployment": "DEPLOYMENT",
    "Earlier commits through a REST catalog": "CAS",
    "Clocks of Postgres, this host and the stores": "CLOCKS",
    "Tier roots, by name and by identity": "TIERS",
    "Holds on the table, or on the plan's snapshots": "HOLDS",
    "Heartbeats of the table and of its neighbors": "BEAT_EXPIRE BEAT_ORPHANS",
    "The table's current metadata: snapshots, refs, statistics, metadata log": "REACH REREAD DIFFERENCE REFS "
    "OWN_METADATA OWN_UNREADABLE MADE_BY OWN_COMMITS",
    "Every other table that is here, or reads here, in every live catalog and its database": "NEIGHBORS DOTS SIBLINGS "
    "COLD_READERS NESSIE INSIDE SIBLING_HERE LOST_COMMITS",
    "A live catalog that does not answer ([several](formats.md#several-live-catalogs))": "NO_ANSWER",
    "Every other object of these catalogs (views, functions, tables of other formats)": "VIEWS",
    "Tables that were dropped and still have files, as last seen and as of every later metadata file": "DROPPED_READER "
    "LAST_STATE DROPPED_INSIDE",
    "Second names of a uuid, and tables of catalogs beside the live ones, or named once, that were dropped": ""
    "SECOND_NAME DROPPED_BESIDE",
    "A dropped table whose last state has a newer format version": "DROPPED_NEWER",
    "A table that was readable, and whose newest commits are not": "UNREAD_NEWEST NEWER",
    "A table that was never readable": "UNREAD",
    "Metadata files newer than the pointer, or beside its history (orphan scans)": "EVIDENCE",
    "A metadata file that a killed step of this deployment wrote on top of the pointer": "ATTEMPTS",
    "Metadata files of another table uuid (orphan scans)": "HERE_BEFORE UNKNOWN_INSIDE",
    "Metadata files of no table (orphan scans)": "VIEW_FILES",
    "Logs of other formats (`_delta_log`, `.hoodie`, Paimon's `snapshot`) in, or around, the table's folders": ""
    "DELTA PAIMON",
    "Open plans, deletions of other scans, undeletes, of the table and its neighbors": "OPEN_PLANS UNARCHIVED "
    "OPEN_SCANS UNDELETES",
    "Holds on neighbors": "HELD_READER",
    "Folders of this machine by device and inode": "FILE_NAMES FOLDER_NAMES",
    "The table's own locations, current and former": "OWNED",
    "The warehouse and `catalogs.live.roots` (orphans)": "ROOTS",
    "The layout of a format (orphans)": "LAYOUT",
    "Names that start with `_` or `.` (orphans)": "HIDDEN",
    "Receipts of earlier deletions": "RECEIPTS",
    "Schemes and authorities (orphan scans)": "PREFIX",
    "The archived copy": "COPY_HANDOFF COPY_COMMIT COPY_BATCH FORGOTTEN",
    "The file itself (orphans)": "LISTED",
    "The file itself (expirations)": "SEALED_AT LOOK JUDGED",
    "The file itself and its archived copy (expirations)": "ARCHIVED_FILE REUSED",
    "Age (orphan scans)": "AGE",
    "Size of the deletion": "LIMITS",
}
"""The guards of each row of docs/protection.md's sources."""

OUTSIDE = {
    "two spellings of a file are two files": "what the rows of a delete file name is below the model's files",
    "a dropped replica has its own last state": "a uuid has one place there",
    "a deletion of an earlier drop is over": "a dropped reader's own deletion is not begun there",
    "dropped tables in quarantine": "a dropped reader's own deletion is not begun there",
    "plans of a uuid that lives on": "a second name has no deletion of its own there",
    "what each name of a uuid has to archive": "a uuid has one state to archive there",
    "a part of a segment is not the segment": "the index of manifests is below the model's files",
    "a hold forgets no other table": "where a table reads has no cache there",
    "a hold records where its table reads": "where a table reads has no cache there",
    "own metadata that cannot be read": "a lost commit can be read there",
    "unknown tables of a newer format version": "a table inside has one format version there",
    "each look at a catalog counts": "nobody undrops there",
    "a name is not a line": "a uuid has one line of commits there",
    "what a look finds lost": "a state has one name there",
    "tables without a uuid": "every table has its number there",
    "metadata that the store refuses": "a store's answers are whole there",
    "what an undelete's snapshots need": "an undelete names all that it protects there",
    "an empty page is no absence": "a store's answers are whole there",
    "a copy replaces no file": "a store keeps conditions there",
    "tables that their catalog cannot load": "what a catalog lists can be loaded there",
}
"""Rows of the table of guards that the model does not have, and why."""

LIMITS = {
    "BETWEEN_COMMIT_AND_LOOK": (
        "EXPIRE",
        "an older file is renamed to an expired path before the first look at it",
    ),
    "WITHOUT_HEARTBEAT": (
        "EXPIRE",
        "a writer without a heartbeat commits a doomed file between check and request",
    ),
    "SCAN_THEN_RESTORE": ("ORPHANS", "a catalog is put back between a scan and its deletion"),
    "UNSEEN_COMMIT": ("READERS", "a catalog loses a reader's commit that no step saw"),
    "HIGHER_LIMIT": ("PLACES", "nothing tells of a table inside, and it is a smaller share than the limit"),
    "RENAMED_IN_FLIGHT": ("UNDELETE", "a file of an older time, in flight without a heartbeat, is listed by a scan"),
    "MOVED_REF_THEN_EXPIRED": ("ARCHIVE", "a lapsed ref is moved, and another tool expires what it names"),
}

KNOWN = (
    ("iceberg 4194: schemes differ", "PREFIX"),
    ("iceberg 10982: expiry by id", "DIFFERENCE"),
    ("iceberg 13568: mixed refs", "DIFFERENCE"),
    ("nessie 12363: a table inside another", "INSIDE"),
    ("Paimon's mark phase: unreadable is taken for empty", "OWN_UNREADABLE"),
    ("a path written again was archived once", "REUSED"),
    ("a view's metadata was an orphan", "VIEW_FILES"),
    ("a catalog from a backup", "EVIDENCE"),
    ("a table dropped and made anew", "NAME"),
    ("a database that forgot a move", "FORGOTTEN"),
)
VARIANTS = {"iceberg 10982: expiry by id": {"ONLY": "1"}, "iceberg 13568: mixed refs": {"ONLY": "2"}}

# --- the model's text -------------------------------------------------------------------------------------------------


def guards() -> dict[str, tuple[int, str]]:
    """The number of each guard, and its row."""
    text = MODEL.read_text()
    listed = text[text.index("guards: number") : text.index("byte out1")]
    return {
        name: (int(number), row) for name, number, row in re.findall(r"#define (\w+) +(\d+) +/\* (.*?) \*/", listed)
    }


def numbers_of_limits() -> dict[str, int]:
    text = MODEL.read_text()
    return {name: int(number) for name, number in re.findall(r"#define (\w+) +(\d+) +/\*", text) if name in LIMITS}


def digest() -> str:
    """What the last run checked: the model, and which scopes and guards."""
    asked = [{name: asdict(scope) for name, scope in SCOPES.items()}, IN_SCOPE, TOGETHER, LIMITS]
    return hashlib.sha256(MODEL.read_bytes() + json.dumps(asked, sort_keys=True).encode()).hexdigest()


def scope_of(guard: str) -> str:
    return next(scope for scope, names in IN_SCOPE.items() if guard in names.split())


def _names() -> tuple[dict[int, str], dict[int, str]]:
    text = MODEL.read_text()
    files = dict(re.findall(r"#define (\w+) +(\d+) +/\* path", text))
    kinds = text[text.index("What THEIRS is, and") : text.index("#define KINDS")]
    of_kinds = {int(number): name for name, number in re.findall(r"#define (\w+) +(\d+)", kinds)}
    return {int(number): name for name, number in files.items()}, of_kinds


READERS = (
    *("", "a table of this catalog", "a table with a dot in its name", "in a sibling catalog", "in the cold catalog"),
    *(
        "on a branch of a Nessie server",
        "of a newer format version",
        "a second name of the table",
        "in a silent catalog",
    ),
)


def in_words(line: str) -> str:
    """Return a sentence of the model with names in place of numbers."""
    files, kinds = _names()

    def of_files(match: re.Match[str]) -> str:
        found = [name for number, name in sorted(files.items()) if int(match[1]) & number]
        return " and ".join(found) if found else "none"

    line = re.sub(r"\bfile (\d+)", of_files, line)
    line = re.sub(r"\bkind (\d+)", lambda match: kinds[int(match[1])], line)
    return re.sub(r"\breader (\d+)", lambda match: READERS[int(match[1])], line)


# --- the checker ------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What one run of the checker found. `steps` is the counterexample in words; empty if there is none."""

    states: int
    depth: int
    seconds: float
    megabytes: float
    steps: list[str] = field(default_factory=list)


def require_tools() -> None:
    lacking = [name for name in NEEDED if shutil.which(name) is None]
    if lacking:
        raise SystemExit(
            f"The model's checker needs {' and '.join(lacking)}. Install it: `sudo apt-get install spin gcc` (Debian, "
            "Ubuntu) or `brew install spin gcc` (macOS)."
        )


class Built:
    """The checkers of scopes, each compiled once in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = {name: number for name, (number, _) in guards().items()}

    def build(self, scope: str, *defines: str, large: bool = False) -> Path:
        place = self._folder / "-".join((scope, "large" if large else "small"))
        place.mkdir()
        shutil.copy(MODEL, place)
        flags = [f"-D{each}" for each in (scope, *SCOPES[scope].defines, *defines)]
        _call(["spin", "-a", *flags, MODEL.name], place)
        how = ["-DNFAIR=3"] if SCOPES[scope].liveness else ["-DBFS", "-DSAFETY", "-DNOCLAIM"]
        _call(["gcc", "-O2" if large else "-O0", "-w", *how, f"-DMEMLIM={MEGABYTES}", "-o", "pan", "pan.c"], place)
        return place

    def run(self, place: Path, scope: str, out: tuple[str, ...] = (), **variables: str) -> Run:
        """Check one scope with these guards out, in a folder of its own."""
        with tempfile.TemporaryDirectory(dir=self._folder) as own:
            numbers = [str(self._numbers[name]) for name in out]
            variables |= dict(zip(("OUT1", "OUT2", "OUT3"), numbers, strict=False))
            shutil.copy(MODEL, own)
            mode = ["-a", "-f"] if SCOPES[scope].liveness else []
            begun = time.monotonic()
            said = _call([str(place / "pan"), "-E", "-m1000000", "-w22", *mode], Path(own), variables)
            seconds = time.monotonic() - begun
            if "errors:" not in said or "error: max search depth" in said or "out of memory" in said:
                raise SystemExit(f"{scope}: the checker did not end:\n{said[-2000:]}")
            found = Run(
                int(re.search(r"(\d+) states, stored", said)[1]),  # type: ignore[index]
                int(re.search(r"depth reached (\d+)", said)[1]),  # type: ignore[index]
                round(seconds, 1),
                round(float(re.search(r"([\d.]+)\s+total actual memory", said)[1])),  # type: ignore[index]
            )
            if not re.search(r"errors: 0\b", said):
                replayed = _call([str(place / "pan"), "-r", "-E"], Path(own), variables)
                lines = [
                    line for line in replayed.splitlines() if re.match(r"[A-Za-z][A-Za-z ]*: (?!~G)|LOST|<<<", line)
                ]
                lines = [line for line in lines if not re.match(r"pan|spin|MSC", line)]
                found.steps = [in_words(re.sub(r"^<<<<<START OF CYCLE>>>>>", "for ever:", line)) for line in lines]
            return found


def _call(command: list[str], place: Path, variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=place, env=os.environ | (variables or {}), capture_output=True, text=True)
    if done.returncode and command[0] in NEEDED:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def check(*, large: bool = False, say: bool = True) -> dict[str, object]:
    """Check all scopes, guards and limits; return the result. Raises SystemExit for a scope with a counterexample, or a
    guard or limit without one."""
    require_tools()
    with tempfile.TemporaryDirectory(prefix="artemis-spec-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        built = Built(Path(folder))
        scopes = [name for name, scope in SCOPES.items() if not scope.only_large]
        asked = {name: pool.submit(built.build, name) for name in scopes}
        places = {name: each.result() for name, each in asked.items()}
        whole = {name: pool.submit(built.run, places[name], name) for name in reversed(scopes)}
        outs = {guard: (guard, *TOGETHER.get(guard, ())) for guard in guards() if guard not in NO_LOSS}
        without = {
            guard: pool.submit(built.run, places[scope_of(guard)], scope_of(guard), out) for guard, out in outs.items()
        }
        numbers = numbers_of_limits()

        def beyond(limit: str) -> Run:
            scope = LIMITS[limit][0]
            return built.run(places[scope], scope, LIMIT=str(numbers[limit]))

        def variant(title: str, guard: str) -> Run:
            scope = scope_of(guard)
            return built.run(places[scope], scope, outs[guard], **VARIANTS[title])

        def larger(scope: str) -> Run:
            return built.run(built.build(scope, *(SCOPES[scope].large or ()), large=True), scope)

        limits = {limit: pool.submit(beyond, limit) for limit in LIMITS}
        known = {title: pool.submit(variant, title, guard) for title, guard in KNOWN if title in VARIANTS}
        more = [name for name, scope in SCOPES.items() if large and (scope.only_large or scope.large)]
        at_large = {name: pool.submit(larger, name) for name in more}
        failed = []
        for kind, runs, finds in (
            ("every guard", whole, False),
            ("larger bounds", at_large, False),
            ("without", without, True),
            ("beyond the limit", limits, True),
            ("known loss", known, True),
        ):
            for name, each in runs.items():
                run = each.result()
                if say:
                    last = f"{len(run.steps)} steps: {run.steps[-1]}" if run.steps else "no counterexample"
                    print(
                        f"{kind} {name}: {run.states:,} states, {run.seconds} s, {run.megabytes:.0f} MB, {last}",
                        flush=True,
                    )
                if bool(run.steps) != finds:
                    failed.append(
                        f"{kind} {name}: " + ("\n  ".join(["LOST", *run.steps]) if run.steps else "nothing is lost")
                    )
        if failed:
            raise SystemExit("\n".join(failed))
        return {
            "model": digest(),
            "scopes": {
                name: {"states": whole[name].result().states, "depth": whole[name].result().depth} for name in scopes
            },
            "larger": {
                name: {"states": run.result().states, "depth": run.result().depth} for name, run in at_large.items()
            },
            "guards": {name: run.result().steps for name, run in without.items()},
            "limits": {name: run.result().steps for name, run in limits.items()},
            "known": {name: run.result().steps for name, run in known.items()},
        }


def _size(run: Run) -> dict[str, int]:
    return {"states": run.states, "depth": run.depth}


# --- the pages --------------------------------------------------------------------------------------------------------

_PRODUCT = ("expirer", "scanner", "dropper", "sweeper", "world", "clock", "LOST", "for ever")


def _short(steps: list[str]) -> str:
    """What others do in a counterexample, in at most so many words; of the product, where it dies."""
    others = [each for each in steps if not each.startswith(_PRODUCT) or "dies" in each or "killed" in each]
    if not others:
        others = [step.replace("world: THEIRS is ", "there is ") for step in steps if step.startswith("world")]
    words = "; ".join(others or ["nobody does anything"]).replace("|", "or").split()
    return " ".join(words) if len(words) <= MOST_WORDS else " ".join(words[: MOST_WORDS - 1]) + " …"


def _loss(steps: list[str]) -> str:
    return steps[-1].removeprefix("LOST ") if steps[-1].startswith("LOST") else "it never goes"


def table_of_guards(result: dict[str, dict[str, list[str]]]) -> str:
    rows = ["| Guard | Scope | Steps | What others do meanwhile | What is lost |", "|---|---|---|---|---|"]
    listed = guards()
    for name, steps in result["guards"].items():
        # Of a counterexample of liveness nobody counts the steps.
        count = str(len(steps) - 1) if steps[-1].startswith("LOST") else "–"
        rows.append(f"| {listed[name][1]} | {scope_of(name)} | {count} | {_short(steps)} | {_loss(steps)} |")
    rows += [f"| {listed[name][1]} | – | – | – | nothing: {why} |" for name, why in NO_LOSS.items()]
    rows += [f"| {row} | – | – | – | not in the model: {why} |" for row, why in OUTSIDE.items()]
    return "\n".join(rows)


def table_of_scopes(result: dict[str, dict[str, dict[str, int]]]) -> str:
    rows = ["| Scope | What is in it | States | Longest path |", "|---|---|---|---|"]
    for name, found in result["scopes"].items():
        rows.append(f"| {name} | {SCOPES[name].what} | {found['states']:,} | {found['depth']} |")
    for name, found in result["larger"].items():
        more = ", ".join(SCOPES[name].large or ()) or SCOPES[name].what
        rows.append(f"| {name}, `--large` | {more.replace('=', ': ')} | {found['states']:,} | {found['depth']} |")
    return "\n".join(rows)


def table_of_limits(result: dict[str, dict[str, list[str]]]) -> str:
    rows = ["| Beyond the limit | Scope | Steps | What is lost |", "|---|---|---|---|"]
    for name, steps in result["limits"].items():
        scope, what = LIMITS[name]
        rows.append(f"| {what} | {scope} | {len(steps) - 1} | {_loss(steps)} |")
    return "\n".join(rows)


def table_of_known() -> str:
    rows = ["| Known loss | Found again without |", "|---|---|"]
    return "\n".join(rows + [f"| {title} | {guards()[guard][1]} |" for title, guard in KNOWN])


def counterexamples(result: dict[str, dict[str, list[str]]]) -> str:
    listed = guards()
    parts = ["# Counterexamples\n\nWritten by `make spec`: for each guard, a shortest way to a loss without it.\n"]
    for name, steps in result["guards"].items():
        out = ", ".join(listed[each][1] for each in TOGETHER.get(name, ()))
        beside = f" Also out: {out}." if out else ""
        # Of a cycle, its first steps say enough.
        shown = steps if steps[-1].startswith("LOST") else steps[:20]
        parts.append(
            f"## {listed[name][1]}\n\nScope {scope_of(name)}.{beside}\n\n"
            + "\n".join(f"- {each}" for each in shown)
            + "\n"
        )
    for name, steps in result["limits"].items():
        parts.append(f"## Beyond the limit: {LIMITS[name][1]}\n\n" + "\n".join(f"- {each}" for each in steps) + "\n")
    for name, steps in result["known"].items():
        parts.append(f"## {name}\n\n" + "\n".join(f"- {each}" for each in steps) + "\n")
    return "\n".join(parts)


def blocks(result: dict[str, dict[str, dict[str, int]]]) -> dict[Path, list[str]]:
    """What stands between the markers of each page, in their order."""
    return {
        DOCS / "protection.md": [table_of_guards(result)],  # type: ignore[arg-type]
        DOCS / "model.md": [table_of_scopes(result), table_of_limits(result), table_of_known()],  # type: ignore[arg-type]
    }


def put(page: str, tables: list[str]) -> str:
    """Return the page with these tables between its markers."""
    parts = re.split(f"({BEGIN}\n.*?{END})", page, flags=re.DOTALL)
    if len(parts) != 2 * len(tables) + 1:
        raise SystemExit(f"The page has {len(parts) // 2} places for {len(tables)} tables")
    parts[1::2] = [f"{BEGIN}\n{table}\n{END}" for table in tables]
    return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also the larger bounds: minutes more")
    parser.add_argument("--show", metavar="GUARD", help="print the last run's counterexample, and check nothing")
    asked = parser.parse_args()
    if asked.show:
        print("\n".join(json.loads(RESULT.read_text())["guards"][asked.show]))
        return
    begun = time.monotonic()
    result = check(large=asked.large)
    if not asked.large and RESULT.exists() and (before := json.loads(RESULT.read_text()))["model"] == result["model"]:
        result["larger"] = before["larger"]
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    COUNTEREXAMPLES.write_text(counterexamples(result))  # type: ignore[arg-type]
    for page, tables in blocks(result).items():  # type: ignore[arg-type]
        if page.exists():
            page.write_text(put(page.read_text(), tables))
    print(table_of_guards(result))  # type: ignore[arg-type]
    print(f"{time.monotonic() - begun:.0f} seconds", file=sys.stderr)


if __name__ == "__main__":
    main()
