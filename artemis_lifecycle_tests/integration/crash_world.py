"""A world that can be put back: one home folder and one database, saved and restored in a fraction of a second; and
what is compared of it after a step.

What may differ after a death, and why:
- A file that went before its worker died is `absent` when it is looked for again, and `deleted` otherwise: nobody had
  written down that it was deleted. Each is gone once, by this job; the two are counted together.
- What one run does in one attempt, two may do in two: a move to the archive is then two moves, of which the first is
  settled by what the store says; the files of both are added up. Steps, leases and attempts are not compared.
- A scan that was run again is another scan, as it is without a death: the newest counts.
- A metadata file whose swap was cut short is nobody's; the matrix checks that an orphan scan names it.
- Names that are made up anew in every run (metadata files, restores) stand for one another.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest
from pyiceberg.table import StaticTable

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.operations.holds import REPLACED
from artemis_lifecycle.storage.types import NO_TAG
from artemis_lifecycle_tests.past_the_guard import past_the_guard

Stamps = dict[str, tuple[int, int]]


@dataclass
class Saved:
    """The world at one time: a copy of its files, and the rows of every table in Postgres with their digests."""

    folder: Path
    stamps: Stamps
    digests: dict[str, str]
    rows: dict[str, bytes]


def without_inodes(patch: pytest.MonkeyPatch) -> None:
    """A disk that is put back has the files' times, and other inodes."""

    def unknown(device: Any, *_: Any) -> Any:
        return NO_TAG if isinstance(device, int) else np.full(len(device), NO_TAG, np.int64)

    patch.setattr("artemis_lifecycle.storage.local.store.disk_tag", unknown)


@dataclass
class Disk:
    """`home` has every file of the world, `uri` (libpq's) every row."""

    home: Path
    uri: str
    beside: Path
    _names: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))
    _observer: Any = None
    _observed: list[str] = field(default_factory=list)

    @contextmanager
    def connected(self) -> Iterator[Any]:
        connection = psycopg2.connect(self.uri)
        try:
            with connection, connection.cursor() as cursor:
                yield cursor
        finally:
            connection.close()

    def save(self) -> Saved:
        folder = self.beside / f"saved-{next(self._names)}"
        shutil.copytree(self.home, folder, symlinks=True)
        rows = {}
        with self.connected() as cursor:
            for table in _tables(cursor):
                out = io.BytesIO()
                cursor.copy_expert(f"COPY {table} TO STDOUT", out)
                rows[table] = out.getvalue()
        return Saved(folder, *self.observe(), rows)

    def put_back(self, saved: Saved) -> None:
        self._put_back_files(saved)
        with self.connected() as cursor:
            # No trigger and no foreign key minds the order.
            cursor.execute("SET LOCAL session_replication_role = replica")
            for schema in ("artemis_cold", "artemis_live"):
                if not any(table.startswith(f"{schema}.") for table in saved.rows):
                    cursor.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            cursor.connection.commit()
            cursor.execute("SET LOCAL session_replication_role = replica")
            _, now = self.observe()
            with past_the_guard(cursor.execute):
                for table in (table for table in now if now[table] != saved.digests.get(table)):
                    cursor.execute(f"DELETE FROM {table}")
                    cursor.copy_expert(f"COPY {table} FROM STDIN", io.BytesIO(saved.rows[table]))

    def _put_back_files(self, saved: Saved) -> None:
        now = stamps(self.home)
        for name in now.keys() - saved.stamps.keys():
            (self.home / name).unlink()
        for name in (name for name, stamp in saved.stamps.items() if now.get(name) != stamp):
            target = self.home / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy2(saved.folder / name, target)
        for folder, _, _ in os.walk(self.home, topdown=False):
            if not (saved.folder / os.path.relpath(folder, self.home)).exists():
                os.rmdir(folder)

    def observe(self) -> tuple[Stamps, dict[str, str]]:
        """Every file and every table's rows, by digest. One connection prepares that once."""
        if self._observer is None:
            self._observer = psycopg2.connect(self.uri)
            self._observer.autocommit = True
        with self._observer.cursor() as cursor:
            if (tables := _tables(cursor)) != self._observed:
                digests = " UNION ALL ".join(
                    f"SELECT '{table}', md5(coalesce(string_agg(t::text, ';' ORDER BY t::text), '')) FROM {table} t"
                    for table in tables
                )
                cursor.execute(f"DEALLOCATE ALL; PREPARE observed AS {digests}")
                self._observed = tables
            cursor.execute("EXECUTE observed")
            return stamps(self.home), dict(cursor.fetchall())

    def without_its_swap(self, work: Callable[[], object]) -> None:
        """`work` as it stands when all its files are written, and the catalog's row is not."""
        with self.connected() as cursor:
            out = io.BytesIO()
            cursor.copy_expert("COPY iceberg_tables TO STDOUT", out)
        work()
        with self.connected() as cursor, past_the_guard(cursor.execute):
            cursor.execute("DELETE FROM iceberg_tables")
            cursor.copy_expert("COPY iceberg_tables FROM STDIN", io.BytesIO(out.getvalue()))

    def execute(self, statement: str) -> None:
        with self.connected() as cursor:
            cursor.execute(statement)


def stamps(home: Path) -> Stamps:
    """Size and time of each file below a folder."""
    found: Stamps = {}
    folders = [str(home)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    status = entry.stat(follow_symlinks=False)
                    found[os.path.relpath(entry.path, home)] = (status.st_size, status.st_mtime_ns)
    return found


def _tables(cursor: Any) -> list[str]:
    cursor.execute(
        "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables "
        "WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"
    )
    return [row[0] for row in cursor.fetchall()]


# --- what is compared -------------------------------------------------------------------------------------------------

ARCHIVED = "in the archive"

_ID = re.compile(r"restore-[0-9a-f]{32}")
_METADATA = re.compile(r"(?:.*/)?\.?\d{5}-[0-9a-f-]{36}\.metadata\.json(?:\.crc)?")
_SCAN = re.compile(r"scan-[0-9a-f]{32}")
_GONE = {"deleted": "gone", "absent": "gone"}


def plain(path: str) -> str:
    return path.removeprefix("file:").replace("///", "/")


def state_of(disk: Disk, config: LifecycleConfig, known: Iterable[int]) -> dict[str, Any]:
    """All that a step may change and that must be the same in the end, of every table in the catalogs. `known` are the
    snapshots that the preparation wrote; others (a restore's) have a new id in each run."""
    known, found = set(known), dict[str, Any]()
    with disk.connected() as cursor:
        cursor.execute("SELECT catalog_name, table_namespace, table_name, metadata_location FROM iceberg_tables")
        tables = sorted(cursor.fetchall())
        for catalog, namespace, name, location in tables:
            tier = "live" if catalog == config.catalogs.live.name else "cold"
            if namespace == "lifecycle":
                found[f"rows of {name}"] = _result(location, name)
            else:
                found |= {f"{tier} {namespace}.{name}: {key}": value for key, value in _table(location, known).items()}
        for key, query in _QUERIES.items():
            cursor.execute(query)
            found[key] = sorted(_counted(tuple(row)) for row in cursor.fetchall())
    live, cold = (Path(plain(str(each.warehouse))) for each in (config.catalogs.live, config.catalogs.cold))
    found["files in live"] = sorted(_names(live))
    found["files in cold"] = sorted((name, _digest(cold / name)) for name in stamps(cold)) if cold.exists() else []
    quarantine = Path(plain(str(config.quarantine.root)))
    found["files in quarantine"] = sorted(stamps(quarantine)) if quarantine.exists() else []
    return found


def rows_of(disk: Disk, config: LifecycleConfig, known: Iterable[int]) -> dict[str, set[str]]:
    """What every snapshot reads now, in each tier that has it."""
    found: dict[str, set[str]] = {}
    with disk.connected() as cursor:
        cursor.execute("SELECT metadata_location FROM iceberg_tables WHERE table_namespace <> 'lifecycle'")
        for (location,) in cursor.fetchall():
            for snapshot, rows in _table(location, set(known))["rows"].items():
                found.setdefault(snapshot, set()).add(str(rows))
    return found


def _names(root: Path) -> Iterator[str]:
    """Every file below a tier, without the result tables', and metadata files, whose names Iceberg makes up."""
    for name in stamps(root):
        if not name.startswith("lifecycle/") and not _METADATA.fullmatch(name):
            yield _alike(name)


def _digest(path: Path) -> str:
    # Until when a thaw lasts is counted from when it was asked for.
    return "an instant" if ".until" in path.parts else hashlib.sha256(path.read_bytes()).hexdigest()


def _alike(text: str) -> str:
    return _SCAN.sub("scan-…", _ID.sub("restore-…", text))


def _table(location: str, known: set[int]) -> dict[str, Any]:
    text = Path(plain(location)).read_bytes()
    document = json.loads(text)
    for entry in (*document.get("metadata-log", ()), {"metadata-file": location}):
        assert Path(plain(entry["metadata-file"])).exists(), entry
    ids = {
        each["snapshot-id"]: each["snapshot-id"] if each["snapshot-id"] in known else f"new {each['sequence-number']}"
        for each in document["snapshots"]
    }
    table = StaticTable.from_metadata(location)
    rows = {f"{ids[each]}": _rows(table, each) for each in ids}
    return {
        "snapshots": sorted(map(str, ids.values())),
        "rows": rows,
        "refs": {name: (ref["type"], ids[ref["snapshot-id"]]) for name, ref in document["refs"].items()},
        "log": [(each["timestamp-ms"], each["snapshot-id"]) for each in document["snapshot-log"]],
    }


def _rows(table: StaticTable, snapshot_id: int) -> list[str] | str:
    try:
        return sorted(map(str, table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()))
    except FileNotFoundError as error:
        path = Path(str(error).split("'")[1])
        assert (path.parent / ".deep-archive" / path.name).exists(), path
        return ARCHIVED


def _result(location: str, name: str) -> list[Any]:
    """The rows of a result table, each with how often it is there."""
    columns = {
        "deletions": ("job_kind", "path", "kind", "outcome"),
        "plan_files": ("plan_id", "path", "kind", "reason"),
        "lineage_edges": ("from_table", "from_id", "to_table", "to_id"),
        "lineage_ledger": ("table_name", "snapshot_id", "operation"),
    }[name]
    rows = StaticTable.from_metadata(location).scan(selected_fields=columns).to_arrow().to_pylist()
    return sorted(Counter(_reported(row, columns) for row in rows).items())


def _reported(row: dict[str, Any], columns: tuple[str, ...]) -> tuple[str, ...]:
    values = [str(row[column]) for column in columns]
    return tuple(_alike(_GONE.get(value, value)) for value in values)


def _counted(row: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(_alike(str(value)) for value in row)


_QUERIES = {
    "plans": "SELECT plan_id, table_name, status, expired_snapshots, files, bytes, closed_by FROM lifecycle.plans",
    "jobs": "SELECT CASE kind WHEN 'orphans' THEN kind ELSE job_id END, files, bytes, batches, finished_at IS NOT NULL "
    "FROM lifecycle.jobs",
    "batches": "SELECT CASE kind WHEN 'orphans' THEN kind ELSE job_id END, batch, state, b.files, b.bytes, "
    "b.deleted + b.absent, b.kept, b.failed FROM lifecycle.batches b JOIN lifecycle.jobs USING (job_id)",
    "handoff batches": "SELECT plan_id, batch, state, files, bytes, copied + skipped FROM lifecycle.handoff_batches",
    "the newest scan": "SELECT DISTINCT ON (table_name) table_name, state, files, bytes FROM lifecycle.scans "
    "ORDER BY table_name, created_at DESC",
    "scans that are not through": "SELECT table_name, state FROM lifecycle.scans WHERE state = 'deleting'",
    "restores": "SELECT table_name, source_snapshot_id, branch, finished_at IS NOT NULL FROM lifecycle.restores "
    "WHERE abandoned_at IS NULL",
    "moves": "SELECT table_name, sum(files), sum(bytes), bool_and(finished_at IS NOT NULL) FROM lifecycle.deep_moves "
    "GROUP BY table_name",
    "thaws": "SELECT snapshot_ids, files, approved_by, asked_at IS NOT NULL, readable_at IS NOT NULL, ended_why "
    "FROM lifecycle.thaws",
    "archived snapshots": "SELECT DISTINCT table_uuid, snapshot_id FROM lifecycle.deep_snapshots",
    "quarantines": "SELECT job_id, purge_after IS NOT NULL, undeleted_by, closed_by, purging_at IS NOT NULL, "
    "purged_at IS NOT NULL FROM lifecycle.quarantines",
    "tags": "SELECT table_name, name, snapshot_id, who, removed_by, removed_why FROM lifecycle.tags "
    f"WHERE removed_why IS DISTINCT FROM '{REPLACED}'",
    "leases that are held": "SELECT step FROM lifecycle.leases WHERE released_at IS NULL AND taken_over_by IS NULL "
    "AND expires_at > clock_timestamp()",
    "heartbeats": "SELECT table_name, writer_id FROM lifecycle.heartbeats WHERE expires_at > clock_timestamp()",
}
