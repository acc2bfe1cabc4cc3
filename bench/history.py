"""Which snapshot was current at an instant: from a metadata file with very many snapshots, and from the compacted
history. `python -m bench.history WORK --entries 1000000` prints JSON.

Each side runs in a process of its own, on the same instants, in one run. Before: read and parse the metadata file, as
every question did, and find the entry in its log. After: read the uuid from the file's first bytes, the index, and at
most one detail file. The catalog's pointer is outside of both. Every answer of the two sides must be equal.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import uuid
from pathlib import Path
from statistics import median

from artemis_lifecycle.expiration.history_index import extend_history, read_history
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.stores import Stores
from bench.parsing import resident

_BEGIN_MS = 1_600_000_000_000
_MINUTE_MS = 60_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.history")
    parser.add_argument("work")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--compaction-every", type=int, default=1_440, help="each so many commits, one is a compaction")
    parser.add_argument("--side", choices=["compact", "before", "after"])
    chosen = parser.parse_args()
    folder = Path(chosen.work).resolve() / f"history-{chosen.entries}-{chosen.compaction_every}"
    instants = _instants(chosen.entries)
    if chosen.side is not None:
        sides = {"compact": _compact, "before": _before, "after": _after}
        print(json.dumps(sides[chosen.side](folder, instants)))
        return
    folder.mkdir(parents=True, exist_ok=True)
    _generate(folder / "v1.metadata.json", chosen.entries, chosen.compaction_every)
    found = {side: _run(sys.argv[1:], side) for side in ("compact", "before", "after")}
    before, after = found["before"].pop("answers"), found["after"].pop("answers")
    assert after[: len(before)] == before, "the two sides disagree"
    ratio = found["before"]["seconds"] / found["after"]["seconds"]
    print(json.dumps({"entries": chosen.entries, **found, "times_faster": ratio}, indent=2))


def _run(arguments: list[str], side: str) -> dict[str, object]:
    command = [sys.executable, "-m", "bench.history", *arguments, "--side", side]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def _instants(entries: int) -> list[int]:
    draw = random.Random(entries)
    return [_BEGIN_MS + draw.randrange(entries * _MINUTE_MS - 2 * _MINUTE_MS) for _ in range(200)]


def _generate(path: Path, entries: int, compaction_every: int) -> None:
    """A commit each minute by one writer, with the summary that Spark writes and the lineage keys."""
    if path.exists():
        return
    aside = path.with_suffix(".aside")
    with aside.open("w") as file:
        head = {
            "format-version": 2,
            "table-uuid": str(uuid.UUID(int=entries)),
            "location": "file:///warehouse/db/t",
            "last-sequence-number": entries,
            "last-updated-ms": _BEGIN_MS + (entries - 1) * _MINUTE_MS,
            "last-column-id": 1,
            "current-schema-id": 0,
            "schemas": [
                {
                    "type": "struct",
                    "schema-id": 0,
                    "fields": [{"id": 1, "name": "a", "required": False, "type": "int"}],
                }
            ],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {},
            "current-snapshot-id": _id(entries - 1),
            "refs": {"main": {"snapshot-id": _id(entries - 1), "type": "branch"}},
            "statistics": [],
            "metadata-log": [],
        }
        file.write(json.dumps(head)[:-1] + ', "snapshots": [')
        for number in range(entries):
            compaction = number % compaction_every == compaction_every - 1
            snapshot = {
                "sequence-number": number + 1,
                "snapshot-id": _id(number),
                **({"parent-snapshot-id": _id(number - 1)} if number else {}),
                "timestamp-ms": _BEGIN_MS + number * _MINUTE_MS,
                "summary": {
                    "operation": "replace" if compaction else "append",
                    "writer.id": "compaction" if compaction else "ingest",
                    "writer.commit_hash": "a1b2c3d4",
                    "writer.invocation_id": f"run-{number // 60}",
                    "trigger.type": "schedule",
                    "added-data-files": "1",
                    "added-records": "1000",
                    "total-records": str(number * 1000),
                    "total-data-files": str(number),
                },
                "manifest-list": f"file:///warehouse/db/t/metadata/snap-{_id(number)}.avro",
                "schema-id": 0,
            }
            file.write((", " if number else "") + json.dumps(snapshot))
        file.write('], "snapshot-log": [')
        for number in range(entries):
            entry = {"timestamp-ms": _BEGIN_MS + number * _MINUTE_MS, "snapshot-id": _id(number)}
            file.write((", " if number else "") + json.dumps(entry))
        file.write("]}")
    aside.rename(path)


def _id(number: int) -> int:
    return (number * 7_046_029_254_386_353_131 + 1) % (2**63 - 1)


def _compact(folder: Path, instants: list[int]) -> dict[str, object]:
    stores, place = _stores(), f"file://{folder}/history-{uuid.uuid4().hex[:8]}"
    metadata = read_table_metadata(stores, f"file://{folder}/v1.metadata.json")
    log = [(entry.timestamp_ms, entry.snapshot_id) for entry in metadata.snapshot_log]
    snapshots = {each.snapshot_id: (each, metadata.metadata_location) for each in metadata.snapshots}
    until = metadata.last_updated_ms - _MINUTE_MS
    began = time.perf_counter()
    index = extend_history(stores, place, [], lambda: log, snapshots, until_ms=until, cut_ms=until)
    seconds = time.perf_counter() - began
    (folder / "current").write_text(place)
    details = sum(file.stat().st_size for file in Path(place.removeprefix("file://")).glob("entries-*"))
    return {
        "metadata_bytes": (folder / "v1.metadata.json").stat().st_size,
        "log_bytes": _log_bytes(folder / "v1.metadata.json"),
        "seconds": seconds,
        "ranges": index.ranges.num_rows,
        "index_bytes": index.size_in_bytes(stores),
        "detail_bytes": details,
    }


def _log_bytes(path: Path) -> int:
    data = path.read_bytes()
    return len(data) - data.index(b'"snapshot-log"')


def _before(folder: Path, instants: list[int]) -> dict[str, object]:
    """Three questions: each parses the whole file."""
    rest, stores, taken, answers = resident("VmRSS"), _stores(), [], []
    for instant in instants[:3]:
        began = time.perf_counter()
        metadata = read_table_metadata(stores, f"file://{folder}/v1.metadata.json")
        past = [entry for entry in metadata.snapshot_log if entry.timestamp_ms <= instant]
        answers.append(max(past, key=lambda entry: entry.timestamp_ms).snapshot_id)
        taken.append(time.perf_counter() - began)
        del metadata, past
    return _figures(taken, answers, rest)


def _after(folder: Path, instants: list[int]) -> dict[str, object]:
    rest, stores, taken, answers = resident("VmRSS"), _stores(), [], []
    place = (folder / "current").read_text()
    for instant in instants:
        began = time.perf_counter()
        stores.read_range(f"file://{folder}/v1.metadata.json", 0, 4096)
        index = read_history(stores, place)
        assert index is not None
        found = index.at(stores, instant)
        taken.append(time.perf_counter() - began)
        assert found is not None
        answers.append(found.snapshot_id)
    return _figures(taken, answers, rest)


def _figures(taken: list[float], answers: list[int], rest: int) -> dict[str, object]:
    return {
        "questions": len(taken),
        "seconds": median(taken),
        "slowest_seconds": max(taken),
        "peak_bytes": resident("VmHWM") - rest,
        "answers": answers,
    }


def _stores() -> Stores:
    return Stores(StoreSettings())


if __name__ == "__main__":
    main()
