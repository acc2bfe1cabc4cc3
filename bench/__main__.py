"""`python -m bench`: generate what is missing, run both sides, print and store the figures. See bench/README.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import metadata, report
from bench.machine import machine
from bench.metadata import Shape, Table
from bench.sampling import Sample, Sampler
from bench.side import Job

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "performance-records.md"

DEFAULTS: Mapping[str, str | None] = {"spark.sql.shuffle.partitions": None}
"""The peer as a user has it who sets nothing: Spark's 200 shuffle partitions."""

DRIVER_MEMORY = "2g"
"""What the project gives a local session (`spark.driver.memory`), and the default of both sides."""

CANDIDATES: Sequence[Mapping[str, str]] = [
    {"spark.sql.shuffle.partitions": str(partitions), "spark.sql.adaptive.enabled": adaptive}
    for partitions in (1, 2, 4, 8)
    for adaptive in ("true", "false")
]


def main() -> None:
    arguments = _arguments()
    work = Path(arguments.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    if arguments.report:
        report.publish(work, machine(arguments.cores, arguments.jars), PAGE if arguments.write else None)
        return
    Bench(arguments, work).run()
    if arguments.generate:
        return
    report.publish(work, machine(arguments.cores, arguments.jars), PAGE if arguments.write else None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--scale", type=float, default=2, help="million files: 0.3, 2 or 10")
    parser.add_argument(
        "--shape", choices=["daily", "many-small-commits", "merged-manifests", "fleet", "metadata"], default="daily"
    )
    parser.add_argument("--snapshots", type=int, default=50_400, help="for many-small-commits")
    parser.add_argument("--tables", type=int, default=200, help="for fleet")
    parser.add_argument("--tags", type=int, default=0, help="tags on the daily table")
    parser.add_argument("--repetitions", type=int, help="default: 5, and 3 from 10 million files on")
    parser.add_argument("--full", type=int, help="full plans, where they are to be fewer than the repetitions")
    parser.add_argument("--nights", type=int, help="nights, where they are to be fewer than the repetitions")
    parser.add_argument("--sides", default="best,defaults,ours", help="which to run, comma-separated; also: tune")
    parser.add_argument("--best", help="the peer's best settings (k=v,k=v) instead of those found by tuning")
    parser.add_argument("--work", default=str(REPOSITORY / ".artemis" / "bench"), help="generated tables and results")
    parser.add_argument("--jars", default=str(REPOSITORY / ".artemis"), help="the home folder that has Spark's jars")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory", help="spark.driver.memory of both sides; default: the project's own")
    parser.add_argument("--generate", action="store_true", help="only generate")
    parser.add_argument("--report", action="store_true", help="only print the tables of the results so far")
    parser.add_argument("--write", action="store_true", help="also write docs/performance-records.md")
    return parser.parse_args()


class Bench:
    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self.arguments = arguments
        self.work = work
        self.repetitions = arguments.repetitions or (3 if arguments.scale >= 10 else 5)
        self.memory = {"spark.driver.memory": arguments.memory} if arguments.memory else {}

    def run(self) -> None:
        if self.arguments.shape == "metadata":
            self._metadata()
            return
        tables = [self._generate(shape) for shape in self._shapes()]
        if self.arguments.generate:
            return
        # Small days of the same shape, so that both sides have run each step before the clock does.
        warm = self._generate(metadata.warm_up(merge=tables[0].shape.merge))
        sides = self.arguments.sides.split(",")
        best = self._best(tables, warm, "tune" in sides)
        result: dict[str, Any] = {
            "shape": self.arguments.shape,
            "scale": self.arguments.scale,
            "tags": self.arguments.tags,
            "repetitions": self.repetitions,
            "machine": machine(self.arguments.cores, self.arguments.jars),
            "tables": len(tables),
            "table": {**asdict(tables[0]), "stages": [asdict(stage) for stage in tables[0].stages]},
            "decode": _json([sys.executable, "-m", "bench.parsing", "decode", tables[0].folder]),
            "sides": {},
        }
        path = self.work / "results" / f"{self._name()}.json"
        if path.exists():
            # Sides that are not run now keep what they gave on the same tables.
            before = json.loads(path.read_text())
            if before["table"]["shape"] == json.loads(json.dumps(asdict(tables[0].shape))):
                result["sides"] = before["sides"]
        confs = {"best": best, "defaults": DEFAULTS, "ours": {}}
        for side in sides:
            if side in confs:
                found = self._side(side, confs[side], tables, warm)
                memory = self.arguments.memory or DRIVER_MEMORY
                result["sides"][side] = {**found, "command": _command(sys.argv[1:]), "driver_memory": memory}
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(result, indent=1))

    def _metadata(self) -> None:
        """Parse metadata files of many snapshots, each in fresh processes."""
        folder = self.work / "metadata-files"
        folder.mkdir(exist_ok=True)
        parsed = []
        for snapshots in (3_395, 50_400, 100_000):
            path = folder / f"{snapshots}-g{metadata.GENERATOR}.metadata.json"
            if not path.exists():
                days = 35
                shape = metadata.many_small_commits(-(-snapshots // days) * days, further_days=0)
                history = metadata.History(shape, f"file://{folder}/table")
                first = len(history.commits) - snapshots
                indices = range(first, len(history.commits))
                path.write_text(metadata.metadata_json(history, indices, log_from=first, tags=()))
            command = [sys.executable, "-m", "bench.parsing", "metadata", str(path)]
            parsed.append([_json(command) for _ in range(self.repetitions)])
        results = self.work / "results"
        results.mkdir(exist_ok=True)
        (results / "metadata.json").write_text(
            json.dumps({"parsed": parsed, "command": _command(sys.argv[1:])}, indent=1)
        )

    def _name(self) -> str:
        a = self.arguments
        tags = f"-tags{a.tags}" if a.tags else ""
        return f"{a.shape}-{a.scale:g}{tags}" if a.shape in ("daily", "merged-manifests") else a.shape

    def _shapes(self) -> list[Shape]:
        a = self.arguments
        if a.shape == "many-small-commits":
            return [metadata.many_small_commits(a.snapshots)]
        if a.shape == "fleet":
            return metadata.fleet(a.tables)
        return [metadata.daily(a.scale, merge=a.shape == "merged-manifests", tags=a.tags)]

    def _generate(self, shape: Shape) -> Table:
        table = metadata.generate(shape, self.work, processes=self.arguments.cores)
        if shape.name != "fleet" or shape.seed == 0:
            _say(
                f"{shape.key}: {table.data_files:,} data files, {table.stages[0].snapshots:,} snapshots, "
                f"{(table.manifest_bytes + table.list_bytes) / 1e6:,.0f} MB of manifests and lists"
            )
        return table

    def _best(self, tables: Sequence[Table], warm: Table, anew: bool) -> Mapping[str, str | None]:
        """The peer's fastest settings on this machine, by one full plan each of the first table, in one
        warm session."""
        if self.arguments.best:
            return dict(pair.split("=", 1) for pair in self.arguments.best.split(","))
        path = self.work / "results" / "tuning.json"
        if path.exists() and not anew:
            return json.loads(path.read_text())["best"]  # type: ignore[no-any-return]
        found = self._process("peer", {}, tables[:1], warm, full=0, nights=0, tuning=CANDIDATES)
        tried = [{key: one[key] for key in ("conf", "seconds", "cpu_seconds")} for one in found["tuning"]]
        for one in tried:
            _say(f"  {one['conf']}: {one['seconds']:.1f} s")
        best = min(tried, key=lambda one: one["seconds"])["conf"]
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"best": best, "tried": tried, "table": tables[0].shape.key}, indent=1))
        return best  # type: ignore[return-value]

    def _side(self, side: str, conf: Mapping[str, str | None], tables: Sequence[Table], warm: Table) -> dict[str, Any]:
        many = len(tables) > 1
        found = self._process(
            "ours" if side == "ours" else "peer",
            conf,
            tables,
            warm,
            full=0 if many else self._number(self.arguments.full),
            nights=1 if many else min(self._number(self.arguments.nights), len(tables[0].stages) - 1),
        )
        for stage in sorted({min(plan["stage"], 1) for plan in found["plans"]}):
            seconds = [plan["seconds"] for plan in found["plans"] if min(plan["stage"], 1) == stage]
            _say(f"  {side}, {'next day' if stage else 'full'}: {report.spread(seconds)}")
        return found

    def _number(self, asked: int | None) -> int:
        return self.repetitions if asked is None else asked

    def _process(
        self,
        side: str,
        conf: Mapping[str, str | None],
        tables: Sequence[Table],
        warm: Table,
        *,
        full: int,
        nights: int,
        tuning: Sequence[Mapping[str, str]] = (),
    ) -> dict[str, Any]:
        """Run one side in a fresh process, watched; its plans, each with its peak memory above the idle session."""
        _say(f"{side} {dict(conf) if conf else ''}")
        stamp = f"{side}-{time.time_ns()}"
        folder = self.work / "runs" / stamp
        folder.mkdir(parents=True)
        job = Job(
            side=side,
            work=str(self.work),
            home=str(self.work / "home"),
            jars=self.arguments.jars,
            cores=self.arguments.cores,
            events=str(folder / "events.jsonl"),
            warm=warm.folder,
            tables=tuple(table.folder for table in tables),
            full=full,
            nights=nights,
            conf={**conf, **self.memory},
            tuning=tuple(tuning),
        )
        (folder / "job.json").write_text(json.dumps(asdict(job)))
        with (folder / "log").open("w") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "bench.side", str(folder / "job.json")],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            sampler = Sampler(child.pid)
            sampler.start()
            code = child.wait()
            samples = sampler.stop()
        if code != 0:
            sys.exit(f"{side} failed:\n" + "\n".join((folder / "log").read_text().splitlines()[-40:]))
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        return _with_memory(events, samples, conf)


def _with_memory(
    events: Sequence[dict[str, Any]], samples: Sequence[Sample], conf: Mapping[str, str | None]
) -> dict[str, Any]:
    idle = next(event for event in events if event["event"] == "idle")
    resting = [sample for sample in samples if idle["begin"] <= sample.at <= idle["end"]]
    base = sorted(sample.jvm + sample.python for sample in resting)[len(resting) // 2]
    plans = [event for event in events if event["event"] == "plan"]
    for plan in plans:
        during = [sample for sample in samples if plan["begin"] <= sample.at <= plan["end"]] or resting
        top = max(during, key=lambda sample: sample.jvm + sample.python)
        plan["peak_bytes"] = top.jvm + top.python
        plan["peak_above_idle"] = top.jvm + top.python - base
        plan["peak_jvm"], plan["peak_python"] = top.jvm, top.python
    return {
        "conf": dict(conf),
        "idle_bytes": base,
        "idle_jvm": sorted(sample.jvm for sample in resting)[len(resting) // 2],
        "warm": next(event for event in events if event["event"] == "warm"),
        "plans": plans,
        "commits": [event for event in events if event["event"] == "commit"],
        "tuning": [event for event in events if event["event"] == "tuning"],
    }


def _command(arguments: Sequence[str]) -> str:
    """What anybody would type for it: without the places of this machine."""
    said, rest = [], iter(arguments)
    for argument in rest:
        if argument in ("--work", "--jars"):
            next(rest, None)
        elif not argument.startswith(("--work=", "--jars=")):
            said.append(argument)
    return "make bench" + (f' ARGS="{" ".join(said)}"' if said else "")


def _json(command: Sequence[str]) -> Any:
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
