"""Mark of a whole catalog. `python -m bench.live_sets WORK` prints JSON; `--files` is the number of live files in
millions, `--commits` and `--references` the size of the log, `--nessie` the commits of the real server's log.

- mark: a log of 100,000 commits under 1,000 references, each commit with a put of its own, recorded in Postgres. Half
  of the commits are on the default branch, and the other references leave it anywhere. The log is a second
  implementation of the source, in this process, so that what is measured is the walk and its records, not a server;
- server: the same walk over a real Nessie server in memory, with fewer commits, filled through its API before;
- files: the live files of one set, from one table's merged metadata to its manifest index: real manifests, as Iceberg
  writes them (`bench/metadata.py`). Each is read once.

Each part runs in a process of its own; memory is its highest resident set (VmHWM). Parts of a mark that the store or
the network decides are not in it: all files are in the system's file cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import requests

from artemis_lifecycle.catalogs.references import TABLE, Commit, Content, Reference
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.live_sets.mark import Policies, mark, policies_of
from artemis_lifecycle.live_sets.tables import merged_tables, version_metadata
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.nessie.references import NessieClient, NessieReferences
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.live_sets import NO_SNAPSHOT, LiveVersion
from artemis_lifecycle.reachability.index.lookups import entries_of
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.nessie import server
from bench import metadata
from bench.parsing import resident

START = datetime(2026, 1, 1, tzinfo=UTC)
TABLES = 1_000


@dataclass
class Log:
    """`parents[n]` is the parent of commit n, -1 for the first."""

    parents: list[int]
    heads: list[int]

    @classmethod
    def of(cls, commits: int, references: int) -> Log:
        dice, main = Random(1), commits // 2
        parents, heads = list(range(-1, main - 1)), [main - 1]
        each = (commits - main) // (references - 1)
        for _ in range(references - 1):
            parents.append(dice.randrange(main))
            parents += range(len(parents) - 1, len(parents) + each - 2)
            heads.append(len(parents) - 1)
        return cls(parents, heads)

    def references(self) -> Sequence[Reference]:
        return [Reference(f"r{number:05}", "branch", f"{head:064x}") for number, head in enumerate(self.heads)]

    def commits(self, head: str) -> Iterator[Commit]:
        at = int(head, 16)
        while at >= 0:
            yield Commit(f"{at:064x}", START + timedelta(seconds=at), (self._put(at),))
            at = self.parents[at]

    def contents_at(self, commit: str) -> Iterator[Content]:
        found: set[str] = set()
        for each in self.commits(commit):
            found.add(each.puts[0].content_id)
            yield each.puts[0]
            if len(found) == TABLES:
                return

    def _put(self, at: int) -> Content:
        table = at % TABLES
        location = f"s3://bucket/warehouse/db/table_{table:05}/metadata/{at:08}-{at:032x}.metadata.json"
        return Content(f"{table:036}", ("db", f"table_{table:05}"), TABLE, location, at + 1)


def mark_part(chosen: argparse.Namespace) -> dict[str, Any]:
    log = Log.of(chosen.commits, chosen.references)
    found = {}
    with _operations(Path(chosen.work)) as operations:
        before = resident("VmRSS")
        for name, rules in {"everything": {}, "20 commits, main whole": {"r00000": "none", "*": 20}}.items():
            policies = policies_of(rules, START)
            live_set_id = f"live-{uuid.uuid4().hex}"
            operations.live_sets.begin(live_set_id, "bench", "all", ())
            began = time.monotonic()
            done = mark(log, policies, operations.live_sets, live_set_id)
            seconds = time.monotonic() - began
            live_set = operations.live_sets.finish(live_set_id, commits=done.commits)
            found[name] = {"seconds": seconds, "commits": done.commits, "versions": live_set.versions}
        return {"policies": found, "before_bytes": before, "most_bytes": resident("VmHWM")}


def server_part(chosen: argparse.Namespace) -> dict[str, Any]:
    log = Log.of(chosen.nessie, 20)
    folder = Path(chosen.work, f"nessie-{uuid.uuid4().hex[:8]}")
    folder.mkdir(parents=True)
    with server.running(None, folder) as nessie:
        hashes = _filled(nessie.api, log)
        with _operations(Path(chosen.work)) as operations:
            live_set_id = f"live-{uuid.uuid4().hex}"
            operations.live_sets.begin(live_set_id, "bench", "all", ())
            began = time.monotonic()
            done = mark(NessieReferences(NessieClient(nessie.api)), Policies(), operations.live_sets, live_set_id)
            seconds = time.monotonic() - began
            versions = operations.live_sets.finish(live_set_id, commits=done.commits).versions
            assert done.commits == len(hashes) == versions, (done, len(hashes), versions)
    return {"seconds": seconds, "commits": done.commits, "references": done.references, "most_bytes": resident("VmHWM")}


def _filled(api: str, log: Log) -> list[str]:
    """Fill an empty server with the log: the default branch first, then the branches from it, several at once."""
    hashes = [""] * len(log.parents)
    children: dict[int, int] = {}
    for head in log.heads[1:]:
        first = head
        while log.parents[first] >= log.heads[0] + 1:
            first = log.parents[first]
        children[head] = first
    head = requests.get(f"{api}/trees/main", timeout=60).json()["reference"]["hash"]
    _commits(api, "main", head, range(log.heads[0] + 1), log, hashes)

    def branch(item: tuple[int, Reference]) -> None:
        last, reference = item
        first = children[last]
        source = {"type": "BRANCH", "name": "main", "hash": hashes[log.parents[first]]}
        requests.post(f"{api}/trees?name={reference.name}&type=BRANCH", json=source, timeout=60).raise_for_status()
        _commits(api, reference.name, source["hash"], range(first, last + 1), log, hashes)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(branch, list(zip(log.heads, log.references(), strict=True))[1:]))
    return hashes


def _commits(api: str, name: str, head: str, numbers: range, log: Log, hashes: list[str]) -> None:
    session = requests.Session()
    for at in numbers:
        (put,) = next(log.commits(f"{at:x}")).puts
        content = {"type": TABLE, "metadataLocation": put.metadata_location, "snapshotId": put.snapshot_id}
        ids = {"schemaId": 0, "specId": 0, "sortOrderId": 0}
        # A key of its own: with one that exists, the content's id would have to be known.
        operation = {"type": "PUT", "key": {"elements": [f"t{at}"]}, "content": content | ids}
        body = {"commitMeta": {"message": str(at)}, "operations": [operation]}
        answer = session.post(f"{api}/trees/{name}@{head}/history/commit", json=body, timeout=60)
        answer.raise_for_status()
        head = hashes[at] = answer.json()["targetBranch"]["hash"]


def files_part(chosen: argparse.Namespace) -> dict[str, Any]:
    work = Path(chosen.work)
    table = metadata.generate(metadata.daily(chosen.files, further_days=0), work)
    stores, root = Stores(), f"file://{work}/index-{uuid.uuid4().hex[:8]}"
    version = LiveVersion("s", "c", _metadata_file(table), NO_SNAPSHOT, "db.t", TABLE, "main")
    before, began = resident("VmRSS"), time.monotonic()
    ((_, merged),) = merged_tables(partial(version_metadata, stores), [version], "all").values()
    found = read_table_metadata(stores, merged.write(stores, f"{root}/live-sets"))
    view = indexed(None, stores, found, LocationRules({}, {}), root)
    seconds = time.monotonic() - began
    entries = entries_of(view, [snapshot.snapshot_id for snapshot in found.snapshots])
    return {
        "seconds": seconds,
        "manifest_entries": entries,
        "seconds_per_million": seconds / entries * 1e6,
        "snapshots": len(found.snapshots),
        "before_bytes": before,
        "most_bytes": resident("VmHWM"),
    }


def _metadata_file(table: metadata.Table) -> str:
    return str(table.stages[0].metadata_location)


class _operations:  # noqa: N801
    """A Postgres of the bench's own."""

    def __init__(self, work: Path) -> None:
        home = work / f"postgres-{uuid.uuid4().hex[:8]}"
        home.mkdir(parents=True)
        for each in (work, home):
            each.chmod(0o755)
        self.server = EmbeddedPostgres(home)

    def __enter__(self) -> Operations:
        self.server.start()
        self.operations = Operations.open(self.server.uri("postgres"))
        return self.operations

    def __exit__(self, *_: object) -> None:
        self.operations.close()
        self.server.remove()


PARTS = {"mark": mark_part, "server": server_part, "files": files_part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work")
    parser.add_argument("--references", type=int, default=1_000)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--files", type=float, default=10)
    parser.add_argument("--nessie", type=int, default=4_000)
    parser.add_argument("--part", choices=PARTS)
    chosen = parser.parse_args()
    if chosen.part is not None:
        print(json.dumps(PARTS[chosen.part](chosen)))
        return
    results = {}
    for part in PARTS:
        command = [sys.executable, "-m", "bench.live_sets", *sys.argv[1:], "--part", part]
        results[part] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
