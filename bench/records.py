"""`make records`: run the command behind every published figure (bench/published.py), and keep all that it printed.

`python -m bench.records [PART …] [--minutes N] [--idle] [--anew] [--write] [-- ARGS]`; `--list` names the parts.

A run fills `.artemis/records/DATE/PART/`: `N.out` and `N.err`, what command N printed; `N.runs`, logs, events and
results of both sides where the bench watches them; `record.jsonl`, a line for each attempt: the command, the peer's
own call and settings, the machine, its load at the start, the commit, seconds, exit code. `DATE/results.md` is made of
these. What is done is not run again: a call goes on in the newest folder until all of it is done, then begins another
one. ARGS go to each command, to try it at a small scale: such a run has a folder of its own, `DATE-try`, and never
reaches the docs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import metadata, report
from bench.machine import machine
from bench.published import BEFORE, PARTS, PLANS

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs"
PAGE = DOCS / "performance-records.md"
BEGIN, END = "<!-- records: begin -->", "<!-- records: end -->"
IDLE = 0.5  # The load below which a machine has nothing else to do.
SHOWN = 80  # Lines of output that are not JSON, on the page of results.


def main(arguments: list[str]) -> int:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="bench.records", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no command later than this")
    parser.add_argument("--idle", action="store_true", help="before each, wait up to ten minutes for a load below 0.5")
    parser.add_argument("--anew", action="store_true", help="in a new folder, whatever the newest one lacks")
    parser.add_argument("--write", action="store_true", help="also into docs/performance-records.md")
    parser.add_argument("--list", action="store_true", help="only name the parts and their commands")
    parser.add_argument("--home", type=Path, default=REPOSITORY / ".artemis", help="has Spark's jars, and all results")
    given, more = parser.parse_args(arguments[:at]), arguments[at + 1 :]
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown or given.list:
        head = f"No such part: {', '.join(unknown)}. Parts of the records:" if unknown else "Parts of the records:"
        print(head, *listed(), sep="\n", file=sys.stderr if unknown else sys.stdout)
        return 2 if unknown else 0
    if given.write and more:
        parser.error("a try with ARGS is not for the docs")
    home, until = given.home.resolve(), time.monotonic() + given.minutes * 60
    night = Night(folder_of(home / "records", anew=given.anew, is_try=bool(more)), home, tuple(more))
    left = [one for name in given.parts or PARTS for one in night.part(name, until, idle=given.idle)]
    page = night.folder / "results.md"
    page.write_text("\n".join(results(night.folder)) + "\n")
    if given.write:
        write(night.folder, home)
    print(f"\n{page}", *left, sep="\n")
    return 1 if left else 0


def listed() -> Iterator[str]:
    for name, part in PARTS.items():
        yield f"  {name:11} {part.minutes:3} min  {part.gives}"
        yield from (f"{'':22}{command}" for command in dict.fromkeys(part.commands))


def folder_of(records: Path, *, anew: bool, is_try: bool) -> Path:
    """The newest folder with something left to do, or a new one, named by the day."""
    found = sorted(each for each in records.glob("20*") if each.name.endswith("-try") == is_try)
    if found and not anew and (is_try or any(left_of(found[-1], name, ()) for name in PARTS)):
        return found[-1]
    names = (f"{datetime.now(UTC):%Y-%m-%d}{f'.{n}' * (n > 1)}{'-try' * is_try}" for n in range(1, 100))
    folder = next(records / name for name in names if not (records / name).exists())
    folder.mkdir(parents=True)
    return folder


def attempts(folder: Path, name: str) -> list[dict[str, Any]]:
    file = folder / name / "record.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def left_of(folder: Path, name: str, more: Sequence[str]) -> list[int]:
    """The numbers of the part's commands that have not ended well in this folder."""
    done = [(one["number"], one["command"], one["more"]) for one in attempts(folder, name) if one["code"] == 0]
    return [n for n, command in enumerate(PARTS[name].commands, 1) if (n, command, list(more)) not in done]


@dataclass(frozen=True)
class Night:
    folder: Path
    home: Path
    more: tuple[str, ...]

    def part(self, name: str, until: float, *, idle: bool) -> Iterator[str]:
        """Run what is left of a part; yield a line for each command that then still is."""
        needs = PARTS[name].needs
        for number in left_of(self.folder, name, self.more):
            if needs and shutil.which(needs) is None:
                yield f"{name} {number}: not run, it needs {needs} on the path"
            elif time.monotonic() >= until:
                yield f"{name} {number}: not begun, the minutes are over"
            elif code := self._run(name, number, idle):
                yield f"{name} {number}: exit code {code}, see {self.folder / name / f'{number}.err'}"

    def _run(self, name: str, number: int, idle: bool) -> int:
        command, place = PARTS[name].commands[number - 1], self.folder / name
        place.mkdir(exist_ok=True)
        tree, (line, told) = REPOSITORY, self._placed(command, name)
        if line[0] == "BEFORE":
            tree, line = self._before(), line[1:]
        waited = time.monotonic() + 600
        while idle and os.getloadavg()[0] >= IDLE and time.monotonic() < waited:
            time.sleep(5)
        said = {"number": number, "command": command, "more": self.more, "line": told}
        said |= {"peer": PARTS[name].peer, "load": os.getloadavg()[0]}
        said |= {"machine": machine(os.cpu_count() or 1, self.home)}
        print(f"{name} {number}, load {said['load']:.1f}: {said['line']}", flush=True)
        paths = {"PYTHONPATH": str(tree), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        began, stamp = time.monotonic(), time.time()
        with (place / f"{number}.out").open("w") as out, (place / f"{number}.err").open("w") as err:
            done = subprocess.run(line, cwd=tree, env={**os.environ, **paths}, stdout=out, stderr=err, check=False)
        said |= {"seconds": round(time.monotonic() - began, 1), "code": done.returncode}
        for kept in (*self.home.glob("bench/runs/*/*"), *self.home.glob("bench/results/*.json")):
            if kept.stat().st_mtime >= stamp:
                (to := place / f"{number}.runs" / kept.parent.name).mkdir(parents=True, exist_ok=True)
                shutil.copy2(kept, to)
        with (place / "record.jsonl").open("a") as record:
            record.write(json.dumps(said) + "\n")
        return done.returncode

    def _placed(self, command: str, name: str) -> tuple[list[str], str]:
        """The command with its places, and as it may be shown: without the address of the new database."""
        tables = self.home / "bench"
        (tables / name).mkdir(parents=True, exist_ok=True)
        files = tables / "metadata-files" / f"100000-g{metadata.GENERATOR}.metadata.json"
        places = {"home": self.home, "tables": tables, "work": tables / name, "metadata": files}
        places |= {"version": version("artemis-lifecycle"), "now": time.time_ns()}
        database = new_database(tables / "home") if "{database}" in command else ""
        given, shown = (command.format(**places, database=uri) for uri in (database, "URI"))
        return [*shlex.split(given), *self.more], " ".join((shown, *self.more))

    def _before(self) -> Path:
        tree, (commit, bench) = self.home / "records" / "before", BEFORE
        if not tree.exists():
            subprocess.run(["git", "worktree", "add", "--detach", tree, commit], cwd=REPOSITORY, check=True)
            subprocess.run(["git", "checkout", bench, "--", "bench"], cwd=tree, check=True)
        return tree


def new_database(home: Path) -> str:
    from sqlalchemy import create_engine, text

    from artemis_lifecycle.embedded.postgres import EmbeddedPostgres

    server, name = EmbeddedPostgres(home), f"records_{uuid.uuid4().hex[:8]}"
    with create_engine(server.uri("postgres"), isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    return server.uri(name)


def results(folder: Path) -> Iterator[str]:
    """The page of a folder: for each part the tables in docs/ that it is for, then each command with its output."""
    yield f"# Records of {folder.name}"
    for name, part in PARTS.items():
        newest = {one["number"]: one for one in attempts(folder, name)}
        if not newest:
            continue
        yield f"\n## {name}: {part.gives}\n\nPublished in: {', '.join(published_in(name))}."
        if part.peer:
            yield f"\nThe peer: {part.peer}."
        for number, one in sorted(newest.items()):
            shape = "; ".join(f"{key.replace('_', ' ')} {value}" for key, value in one["machine"].items())
            ended = "" if one["code"] == 0 else f" **It failed: exit code {one['code']}.**"
            yield f"\n`{one['line']}`\n\nLoad {one['load']:.2f} at the start; {one['seconds']} s. {shape}.{ended}\n"
            yield from shown((folder / name / f"{number}.out").read_text())


def published_in(name: str) -> list[str]:
    pages = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [str(page.relative_to(REPOSITORY)) for page in pages if name in marked(page.read_text())]


def marked(text: str) -> set[str]:
    """The parts that a page's markers name."""
    found = re.findall(r"<!-- record: ([^>]+?) -->", text)
    return {name for names in found if not names.startswith("none") for name in names.split(", ")}


def shown(output: str) -> Iterator[str]:
    """JSON, whole or in lines of its own, as a table with a column for each; the rest as it is, its end."""
    whole = parsed(output)
    lines = [] if whole is not None else output.strip().splitlines()
    values = [parsed(line) for line in lines]
    rest = [line for line, value in zip(lines, values, strict=True) if value is None]
    columns = [dict(flat(value)) for value in (whole, *values) if value is not None]
    if columns:
        yield "| figure |" + "".join(f" {number} |" for number, _ in enumerate(columns, 1))
        yield "|---|" + "---|" * len(columns)
        for key in dict.fromkeys(key for column in columns for key in column):
            yield f"| {key} |" + "".join(f" {column.get(key, '')} |" for column in columns)
        yield ""
    if rest:
        yield from ("```text", *rest[-SHOWN:], "```")


def parsed(text: str) -> Any:
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
    except ValueError:
        return None


def flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict | list) for one in value)):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value, 1):
            yield from flat(one, f"{key}, {name}".removeprefix(", "))
    else:
        yield key, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def write(folder: Path, home: Path) -> None:
    """What ran, when and beside what, between the markers of docs/performance-records.md; and the bench's tables of
    plans, once all of those ran: they are written as a whole."""
    rows = ["| part | ran (UTC) | commit | load | seconds |", "|---|---|---|---|---|"]
    for name in PARTS:
        for one in (one for one in attempts(folder, name) if one["code"] == 0):
            at, commit = one["machine"]["at"], one["machine"]["commit"]
            rows.append(f"| {name} {one['number']} | {at} | {commit} | {one['load']:.2f} | {one['seconds']} |")
    report.replace(PAGE, BEGIN, END, ["\n".join(rows)])
    if not any(left_of(folder, name, ()) for name in PLANS):
        report.publish(home / "bench", machine(os.cpu_count() or 1, home), PAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
