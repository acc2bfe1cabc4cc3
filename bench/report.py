"""Results as tables: in the terminal, and as the Markdown of docs/performance-records.md; machine and commands go to
docs/performance-methods.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

_OF_A_RUN = ("at", "commit")

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
"""`make bench` writes what is between the two on each page; the rest stays."""


@dataclass(frozen=True)
class Grid:
    """A table of figures. `record`: the parts of `make records` that give it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    record: str = "plans, plans-10m, tags, fleet, commits"


def spread(seconds: Sequence[float]) -> str:
    """Median and range, in seconds."""
    return f"{_seconds(median(seconds))} ({_seconds(min(seconds))} to {_seconds(max(seconds))})"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f} MB"


def load(work: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((work / "results").glob("*.json"))}


def publish(work: Path, machine: Mapping[str, object], path: Path | None) -> None:
    """Print every table that the results so far fill, and write them into `path` where one is given.

    Raises SystemExit when the two sides named different files anywhere.
    """
    results = load(work)
    differences = list(_differences(results))
    grids = [grid for grid in _grids(results) if grid.rows]
    _print(grids)
    if differences:
        raise SystemExit("The two sides name different files:\n" + "\n".join(differences))
    if path is not None:
        _write(path, grids, results, machine)


def _plans(results: Mapping[str, Any], name: str, side: str, *, night: bool) -> list[dict[str, Any]]:
    plans = results.get(name, {}).get("sides", {}).get(side, {}).get("plans", [])
    return [plan for plan in plans if (plan["stage"] > 0) == night]


def _times(results: Mapping[str, Any], name: str, side: str, *, night: bool) -> list[float]:
    plans = _plans(results, name, side, night=night)
    if name != "fleet":
        return [plan["seconds"] for plan in plans]
    return [sum(plan["seconds"] for plan in plans)] if plans else []


def _differences(results: Mapping[str, Any]) -> Iterator[str]:
    for name, result in results.items():
        named: dict[tuple[str, int], dict[str, tuple[int, str, str]]] = {}
        for side, found in result.get("sides", {}).items():
            for plan in found["plans"]:
                key = (plan["table"], plan["stage"])
                one = (plan["files"], plan["hash1"], plan["hash2"])
                before = named.setdefault(key, {}).setdefault(side, one)
                if before != one:
                    yield f"{name}, {key}: {side} named {before[0]} files, then {one[0]}"
        for key, sides in named.items():
            if len(set(sides.values())) > 1:
                yield f"{name}, {key}: " + ", ".join(f"{side} {one[0]} ({one[1]})" for side, one in sides.items())


def _grids(results: Mapping[str, Any]) -> Iterator[Grid]:
    yield _figures(results)
    yield _all(results)
    yield _memory(results)
    yield _parts(results)
    yield _limits(results)
    yield _index(results)
    yield _metadata(results)
    yield _tuning(results)


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> str:
    return f"{median(theirs) / median(ours):.1f}×" if theirs and ours else ""


def _figures(results: Mapping[str, Any]) -> Grid:
    rows: list[tuple[str, ...]] = []

    def compared(title: str, name: str, night: bool, targets: Mapping[str, tuple[str, str]]) -> None:
        ours = _times(results, name, "ours", night=night)
        for side, (reach, aim) in targets.items():
            theirs = _times(results, name, side, night=night)
            if theirs or ours:
                label = {"best": "at its best", "defaults": "at defaults"}[side]
                rows.append(
                    (
                        f"{title}, peer {label}",
                        spread(theirs) if theirs else "",
                        spread(ours) if ours else "",
                        _ratio(theirs, ours),
                        reach,
                        aim,
                    )
                )

    compared("Full plan from nothing, 2 M files", "daily-2", False, {"best": ("3×", "6×"), "defaults": ("8×", "20×")})
    compared(
        "Next day's plan with the index, 2 M files",
        "daily-2",
        True,
        {"best": ("15×", "40×"), "defaults": ("45×", "120×")},
    )
    small, large = (_times(results, f"daily-{scale}", "ours", night=True) for scale in (2, 10))
    if small and large:
        growth = f"{median(large) / median(small):.2f}×"
        rows.append(("Growth: next day at 10 M against 2 M", spread(small), spread(large), growth, "≤ 1.5×", "≤ 1.1×"))
    peaks = {side: _peak(results, "daily-10", side, night=False) for side in ("best", "defaults", "ours")}
    if peaks["ours"] is not None:
        for side, label in (("best", "at its best"), ("defaults", "at defaults")):
            theirs = peaks[side]
            if theirs is not None:
                rows.append(
                    (
                        f"Peak memory above idle, 10 M files, full plan, peer {label}",
                        _megabytes(theirs),
                        _megabytes(peaks["ours"]),
                        f"{peaks['ours'] / theirs:.2f} of it" if theirs > 0 else "",
                        "below 1",
                        "0.25",
                    )
                )
    compared("50,000 snapshots of small commits, next day", "many-small-commits", True, {"best": ("25×", "100×")})
    return Grid("The five figures", ("figure", "peer", "ours", "ratio", "reach", "aim"), tuple(rows))


def _peak(results: Mapping[str, Any], name: str, side: str, *, night: bool) -> float | None:
    plans = _plans(results, name, side, night=night)
    return median(plan["peak_above_idle"] for plan in plans) if plans else None


def _all(results: Mapping[str, Any]) -> Grid:
    rows = []
    for name in results:
        for night in (False, True):
            times = {side: _times(results, name, side, night=night) for side in ("defaults", "best", "ours")}
            if not any(times.values()):
                continue
            plan = next(plan for side in times for plan in _plans(results, name, side, night=night) if times[side])
            files = (
                sum(plan["files"] for plan in _first_side(results, name, night)) if name == "fleet" else plan["files"]
            )
            rows.append(
                (
                    f"{name}, {'next day' if night else 'full'}",
                    f"{files:,}",
                    *(spread(times[side]) if times[side] else "" for side in ("defaults", "best", "ours")),
                    _ratio(times["defaults"], times["ours"]),
                    _ratio(times["best"], times["ours"]),
                )
            )
    head = ("table", "files to delete", "peer, defaults", "peer, best", "ours", "to defaults", "to best")
    return Grid("All shapes: median (range)", head, tuple(rows))


def _first_side(results: Mapping[str, Any], name: str, night: bool) -> list[dict[str, Any]]:
    return next(plans for side in ("ours", "best", "defaults") if (plans := _plans(results, name, side, night=night)))


def _memory(results: Mapping[str, Any]) -> Grid:
    rows = []
    for name in results:
        for night in (False, True):
            for side in ("defaults", "best", "ours"):
                plans = _plans(results, name, side, night=night)
                if not plans:
                    continue
                found = results[name]["sides"][side]
                above = [plan["peak_above_idle"] for plan in plans]
                rows.append(
                    (
                        f"{name}, {'next day' if night else 'full'}",
                        "ours" if side == "ours" else f"peer, {side}",
                        found["driver_memory"],
                        _megabytes(found["idle_bytes"]),
                        f"{_megabytes(median(above))} ({_megabytes(min(above))} to {_megabytes(max(above))})",
                        _megabytes(max(plan["peak_jvm"] for plan in plans)),
                        _megabytes(max(plan["peak_python"] for plan in plans)),
                    )
                )
    head = (
        "table",
        "side",
        "driver memory",
        "idle session",
        "peak above idle",
        "highest JVM (RSS)",
        "highest Python (PSS)",
    )
    return Grid("Memory", head, tuple(rows))


def _parts(results: Mapping[str, Any]) -> Grid:
    rows = []
    for name, result in results.items():
        for side, found in result.get("sides", {}).items():
            for night in (False, True):
                plans = [plan for plan in found["plans"] if (plan["stage"] > 0) == night]
                if not plans:
                    continue
                commits = [commit["seconds"] for commit in found["commits"] if (commit["stage"] > 0) == night]
                rows.append(
                    (
                        f"{name}, {'next day' if night else 'full'}",
                        "ours" if side == "ours" else f"peer, {side}",
                        _seconds(median(plan["load_seconds"] for plan in plans)),
                        _seconds(median(plan["cpu_seconds"] for plan in plans)),
                        _seconds(median(commits)) if commits else "",
                        _seconds(median(plan["publish_seconds"] for plan in plans)) if side == "ours" else "",
                    )
                )
    head = (
        "table",
        "side",
        "reading metadata.json (outside)",
        "processor time",
        "the peer's commit (inside)",
        "publishing (outside)",
    )
    return Grid("What is in the time and what is not", head, tuple(rows))


def _limits(results: Mapping[str, Any]) -> Grid:
    rows = []
    for name, result in results.items():
        decode, table = result.get("decode"), result.get("table")
        ours = _times(results, name, "ours", night=False)
        if not decode or not ours or name == "fleet":
            continue
        cores = result["machine"]["cores"]
        # Of the table's manifests and lists, the first plan reads those of its own days alone.
        share = table["shape"]["days"] / (table["shape"]["days"] + table["shape"]["further_days"])
        stored = (table["manifest_bytes"] + table["list_bytes"]) * share
        inflate = stored * decode["inflate_seconds"] / decode["stored_bytes"] / cores
        decoded = stored * decode["decode_seconds"] / decode["stored_bytes"] / cores
        rows.append(
            (
                name,
                _megabytes(stored),
                _seconds(inflate),
                _seconds(decoded),
                _seconds(median(ours)),
                f"{median(ours) / decoded:.1f}×",
            )
        )
    head = ("table", "manifests and lists", "undo the codec", "decode all, by Arrow", "full plan", "plan to decode")
    return Grid("The limit of a full plan: its bytes over the decode speed of all cores", head, tuple(rows))


def _index(results: Mapping[str, Any]) -> Grid:
    rows = []
    for name, result in results.items():
        sizes = [plan["index_bytes"] for plan in _plans(results, name, "ours", night=False) if "index_bytes" in plan]
        if sizes and name != "fleet":
            table = result["table"]
            stored, files = table["manifest_bytes"] + table["list_bytes"], table["data_files"]
            rows.append(
                (
                    name,
                    _megabytes(stored),
                    _megabytes(sizes[-1]),
                    f"{sizes[-1] / stored:.0%}",
                    f"{sizes[-1] / files:,.0f}",
                )
            )
    return Grid("The manifest index", ("table", "metadata", "index", "of it", "bytes per data file"), tuple(rows))


def _metadata(results: Mapping[str, Any]) -> Grid:
    rows = [
        (
            f"{one['snapshots']:,}",
            _megabytes(one["bytes"]),
            _seconds(median(run["seconds"] for run in runs)),
            _megabytes(median(run["peak_bytes"] for run in runs)),
        )
        for runs in results.get("metadata", {}).get("parsed", [])
        for one in runs[:1]
    ]
    return Grid(
        "Reading metadata.json",
        ("snapshots", "file", "parse", "peak memory beside the file's bytes"),
        tuple(rows),
        "metadata",
    )


def _tuning(results: Mapping[str, Any]) -> Grid:
    rows = [
        (
            ", ".join(f"{key.removeprefix('spark.sql.')}={value}" for key, value in one["conf"].items()),
            _seconds(one["seconds"]),
            _seconds(one["cpu_seconds"]),
        )
        for one in results.get("tuning", {}).get("tried", [])
    ]
    title = f"The peer's settings tried, {results['tuning']['table']}" if rows else ""
    return Grid(title, ("settings", "full plan", "processor time"), tuple(rows), "plans")


def _print(grids: Sequence[Grid]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for grid in grids:
        table = Table(title=grid.title, title_justify="left")
        for number, name in enumerate(grid.head):
            table.add_column(name, justify="left" if number == 0 else "right")
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)


def markdown(grid: Grid) -> str:
    lines = [
        f"### {grid.title}",
        "",
        f"<!-- record: {grid.record} -->",
        "",
        "| " + " | ".join(grid.head) + " |",
        "|---" * len(grid.head) + "|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in grid.rows]
    return "\n".join(lines)


def _write(path: Path, grids: Sequence[Grid], results: Mapping[str, Any], machine: Mapping[str, object]) -> None:
    runs = [run for result in results.values() for run in (result, *result.get("sides", {}).values())]
    commands = "\n".join(dict.fromkeys(f"    {run['command']}" for run in runs if "command" in run))
    # The results have their own time and commit: the report may be written much later.
    shape = "; ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items() if key not in _OF_A_RUN)
    ran = "; ".join(
        f"{name} {result['machine']['at']} on {result['machine']['commit']}"
        for name, result in results.items()
        if "machine" in result
    )
    method = (f"Machine: {shape}.", f"Last side of each table ran (UTC, commit): {ran}.", f"Commands:\n\n{commands}")
    replace(path, BEGIN, END, map(markdown, grids))
    replace(path.with_name("performance-methods.md"), BEGIN, END, method)


def replace(page: Path, begin: str, end: str, parts: Iterable[str]) -> None:
    """Put `parts` between two markers of a page."""
    head, _, rest = page.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    body = "\n\n".join(parts)
    page.write_text(f"{head}{begin}\n\n{body}\n\n{end}{tail}")
