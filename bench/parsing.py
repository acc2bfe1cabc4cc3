"""Two limits, each measured in a process of its own: reading a metadata file of very many snapshots, and decoding
manifests on one core. `python -m bench.parsing metadata FILE` and `python -m bench.parsing decode TABLE_FOLDER` print
JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from artemis_lifecycle.metadata import manifest_lists, manifests
from artemis_lifecycle.metadata.avro.container import open_container
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata
from artemis_lifecycle.storage.stores import Stores
from bench import metadata


def parse(path: Path) -> dict[str, object]:
    """Seconds of a first parse, and what it adds to the process' memory at its peak, beside the file's own bytes."""
    data = path.read_bytes()
    before = resident("VmRSS")
    began = time.perf_counter()
    parsed = parse_table_metadata(data, f"file://{path}")
    seconds = time.perf_counter() - began
    peak = resident("VmHWM")
    return {
        "snapshots": len(parsed.snapshots),
        "bytes": len(data),
        "seconds": seconds,
        "peak_bytes": peak - before,
    }


def resident(what: str, pid: int | str = "self") -> int:
    """VmRSS (now) or VmHWM (the most so far) of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise KeyError(what)


def decode(folder: Path, sample: int = 300) -> dict[str, object]:
    """Speeds of one core on a sample of the table's manifests: undoing the codec, and decoding to columns."""
    table = metadata.load(folder)
    stores = Stores()
    found = manifest_lists.manifests_of(stores, _last_snapshot(table))
    entries = list(found.entries)[:sample]
    data = {entry.manifest_path: stores.read(entry.manifest_path) for entry in entries}
    began = time.perf_counter()
    raw = sum(len(open_container(content, path).payload) for path, content in data.items())
    inflated = time.perf_counter() - began
    for entry in entries[:20]:
        manifests.live_entries(stores, entry)
    began = time.perf_counter()
    rows = sum(manifests.live_entries(stores, entry).num_rows for entry in entries)
    decoded = time.perf_counter() - began
    stored = sum(map(len, data.values()))
    return {
        "manifests": len(entries),
        "rows": rows,
        "stored_bytes": stored,
        "raw_bytes": raw,
        "inflate_seconds": inflated,
        "decode_seconds": decoded,
    }


def _last_snapshot(table: metadata.Table) -> object:
    from artemis_lifecycle.metadata.table_metadata import read_table_metadata

    # The last append before the day's compaction: its list holds the day's appends.
    return read_table_metadata(Stores(), table.stages[0].metadata_location).snapshots[-2]


if __name__ == "__main__":
    what, path = sys.argv[1], Path(sys.argv[2])
    print(json.dumps(parse(path) if what == "metadata" else decode(path)))
