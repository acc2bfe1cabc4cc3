"""A table of a hundred million files, on this machine alone: `python -m bench.hundred_million WORK HOME` prints a line
of JSON for each part. HOME is the folder that has Spark's jars. `--scale 5` is five million, in smaller days of the
same history; `--part full` does one part on what the parts before it left; `--resume` those that have no result yet.

Parts, each in a process and a session of its own that has done nothing before:

- generate: 174 days of 96 appends and a compaction each (`bench/metadata.py`), their manifests and lists, and a listing
  in Parquet files (path, last_modified, size_in_bytes) of all that the table reaches, and of 3,000 orphans. Manifests
  of deleted entries only, which nobody opens, are left without them: half of the bytes.
- full: `plan_expiration` of the 25 oldest days without an index, and the count of the plan's files.
- orphans: `scan_orphans` of the listing; it must name the planted files and no other.
- next: the plan of the day after, on the index that the first plan left, and its count.

Seconds are from the question to the answer. Memory is the highest of all processes, sampled, above the session at rest.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.spark.session import open_session, session_conf
from bench import encoding, metadata
from bench.metadata import DAY_MS, Files, Shape, Table
from bench.sampling import Sampler, processor_seconds
from bench.side import Job, Ours

PARTS = ("generate", "full", "orphans", "next")
ORPHANS = 3_000
_DAYS, _EXPIRE, _APPENDS = 174, 25, 96
_LISTED = pa.schema(
    [("path", pa.string()), ("last_modified", pa.timestamp("us", "UTC")), ("size_in_bytes", pa.int64())]
)


def shape_of(scale: float, expire: int = _EXPIRE) -> Shape:
    files = max(1, round(60 * scale))
    compacted = max(1, files * _APPENDS // 256)
    return Shape("hundred", _DAYS, expire, 1, _APPENDS, files, compacted, merge=False, deletions=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("home", type=Path)
    parser.add_argument("--scale", type=float, default=100, help="million files")
    parser.add_argument("--expire", type=int, default=_EXPIRE, help="days that the first plan removes, of 174")
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--resume", action="store_true", help="only the parts without a result")
    parser.add_argument("--alone", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.alone:
        return alone(arguments, arguments.alone)
    for part in arguments.part or PARTS:
        result = arguments.work / f"hundred-{arguments.scale:g}-{arguments.expire}-{part}.json"
        if not (arguments.resume and result.exists()):
            result.write_text(json.dumps(watched(part)))
        print(result.read_text(), flush=True)


def watched(part: str) -> dict[str, Any]:
    """Do the part in a process of its own, and return what it says, with its memory."""
    load = os.getloadavg()[0]
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.hundred_million", *sys.argv[1:], "--alone", part],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    sampler = Sampler(child.pid, interval=0.1)
    sampler.start()
    printed, _ = child.communicate()
    samples = sampler.stop()
    if child.returncode:
        sys.exit(f"{part} failed")
    said: dict[str, Any] = json.loads(printed.splitlines()[-1])
    rest, (begin, end) = said.pop("rest", None), said.pop("during")
    idle = [one.jvm + one.python for one in samples if rest and rest[0] <= one.at <= rest[1]]
    base = sorted(idle)[len(idle) // 2] if idle else 0
    top = max((one for one in samples if begin <= one.at <= end), key=lambda one: one.jvm + one.python)
    memory = {"peak_above_idle": top.jvm + top.python - base, "idle": base, "jvm": top.jvm, "python": top.python}
    return {"part": part, **said, **memory, "load_before": load, "load_after": os.getloadavg()[0]}


def alone(arguments: argparse.Namespace, part: str) -> None:
    work, cores = arguments.work.resolve(), os.cpu_count() or 1
    shape = shape_of(arguments.scale, arguments.expire)
    if part == "generate":
        encoding.DEFLATE_LEVEL = 1  # A third of the time for a twentieth more bytes.
        made, said = timed(lambda: generate(shape, work, cores))
        print(json.dumps(said | made))
        return
    table = metadata.load(work / shape.key)
    home = str(work / "home")
    config = LifecycleConfig.model_validate({"home": home, "spark": {"master": f"local[{cores}]"}})
    spark = open_session(session_conf(config, {}, resolve(arguments.home)))
    job = Job("ours", str(work), home, str(arguments.home), cores, "", "", (table.folder,), 1, 1, {})
    ours = Ours(spark, job, state_of(table, work, anew=part == "full"))
    try:
        ready = scanned(ours, table) if part == "orphans" else planned(ours, table, 1 if part == "next" else 0)
        spark.range(1).count()
        gc.collect()
        resting = time.monotonic()
        time.sleep(2)
        rest = resting, time.monotonic()
        checked, said = timed(ready)
        print(json.dumps(said | checked() | {"rest": rest}), flush=True)
    finally:
        ours.close()
        spark.stop()


def state_of(table: Table, work: Path, *, anew: bool) -> str:
    """Return the name of what the parts leave one another. The first plan is of a table that nothing is known of."""
    note = Path(table.folder) / "state"
    if anew:
        if note.exists():
            shutil.rmtree(work / "state" / note.read_text(), ignore_errors=True)
        note.write_text(uuid.uuid4().hex)
    return note.read_text()


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    processor, begin = processor_seconds(), time.monotonic()
    done = work()
    end = time.monotonic()
    used = processor_seconds() - processor
    return done, {"seconds": round(end - begin, 1), "processor": round(used, 1), "during": [begin, end]}


# --- the table and its listing ----------------------------------------------------------------------------------------


def generate(shape: Shape, work: Path, processes: int) -> dict[str, Any]:
    table = metadata.generate(shape, work, processes=processes)
    folder = Path(table.folder) / "listing"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    days = list(metadata.over(partial(_list_day, shape, table.location, folder), range(shape.days), processes))
    rows = sum(listed for listed, _ in days)
    (Path(table.folder) / "planted.json").write_text(json.dumps(sorted(path for _, left in days for path in left)))
    rows += _list_metadata(metadata.History(shape, table.location), Path(table.folder), folder)
    return {
        "data_files": table.data_files,
        "snapshots": table.stages[0].snapshots,
        "entries": table.entries,
        "manifests": table.manifests,
        "metadata_bytes": table.manifest_bytes + table.list_bytes,
        "listed": rows,
        "listing_bytes": sum(path.stat().st_size for path in folder.iterdir()),
    }


def _list_day(shape: Shape, location: str, folder: Path, day: int) -> tuple[int, list[str]]:
    """Write the listing of a day's files, and of some that no commit has; return its rows, and the paths of these."""
    files = Files(shape, location)
    small, large = (_texts(files.paths(kind, day)) for kind in (0, 1))
    every = max(1, len(small) * shape.days // ORPHANS)
    left = [path.replace(".parquet", "-left.parquet") for path in small[::every].to_pylist()]
    parts = [_listed(paths, files.sizes(kind, day)[1], day) for kind, paths in enumerate((small, large))]
    parts.append(_listed(pa.array(left), np.full(len(left), 1 << 20), day))
    return _write(pa.concat_tables(parts), folder / f"day-{day:03d}.parquet"), left


def _list_metadata(history: metadata.History, of: Path, folder: Path) -> int:
    """Write the listing of the metadata that the first stage reaches."""
    first = history.shape.days * history.commits_a_day
    names = [metadata.list_name(commit) for commit in history.commits[:first]]
    names += [manifest.name for manifest in history.manifests if manifest.commit < first]
    sizes = np.array([(of / "metadata" / name).stat().st_size for name in names])
    paths = pa.array([f"{history.location}/metadata/{name}" for name in names])
    return _write(_listed(paths, sizes, history.shape.days - 1), folder / "metadata.parquet")


def _texts(rows: encoding.Bytes) -> pa.Array:
    ends = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    return pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(ends), pa.py_buffer(rows.tobytes())])


def _listed(paths: pa.Array, sizes: np.ndarray[Any, Any], day: int) -> pa.Table:
    times = np.full(len(paths), (encoding.day_number(day) + 1) * DAY_MS * 1000 - 1)
    return pa.table([paths, pa.array(times).cast(_LISTED.field(1).type), pa.array(sizes)], _LISTED)


def _write(rows: pa.Table, path: Path) -> int:
    pq.write_table(rows, path, compression="zstd", use_dictionary=["last_modified"], row_group_size=100_000)
    return rows.num_rows


# --- what is measured -------------------------------------------------------------------------------------------------


def leaving(shape: Shape) -> int:
    """The files that a plan names for each day that leaves: those that were appended, their manifests and those of
    their deletion, and all lists."""
    assert isinstance(shape.files, int)
    return shape.appends * shape.files + 2 * shape.appends + shape.appends + 1


def planned(ours: Ours, table: Table, stage: int) -> Callable[[], Callable[[], dict[str, Any]]]:
    plan = ours.planned(table, table.stages[stage])
    expected = leaving(table.shape) * (1 if stage else table.shape.expire)

    def work() -> Callable[[], dict[str, Any]]:
        began = time.monotonic()
        sealed = plan()
        took = time.monotonic() - began
        files = sealed.files().count()

        def checked() -> dict[str, Any]:
            assert files == sealed.summary.files == expected, (files, sealed.summary, expected)
            index = ours.folder / "root" / "index" / table.table_uuid
            size = sum(path.stat().st_size for path in index.iterdir())
            return {"plan_seconds": round(took, 1), "files": files, "index_bytes": size}

        return checked

    return work


def scanned(ours: Ours, table: Table) -> Callable[[], Callable[[], dict[str, Any]]]:
    lifecycle, name = ours.lifecycle, ours.name(table)
    place = f"{table.folder}/listing"
    listing = lifecycle.parquet_listing(f"file://{place}")
    # What the bench commits on the day after stands there already.
    lifecycle.settle_metadata(name, who="bench", why="a later stage of a made table")

    def work() -> Callable[[], dict[str, Any]]:
        scan = lifecycle.scan_orphans(name, listing=listing)

        def checked() -> dict[str, Any]:
            found = [row["path"] for row in scan.files().select("path").collect()]
            planted = json.loads((Path(table.folder) / "planted.json").read_text())
            assert sorted(found) == planted, (len(found), len(planted))
            return {"listed": scan.summary.listed_files, "orphans": len(found)}

        return checked

    return work


if __name__ == "__main__":
    main()
