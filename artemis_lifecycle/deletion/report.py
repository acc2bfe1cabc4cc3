"""The report of a deletion: what happened to a job's files over all its runs, from the journal and the outcomes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.catalogs.results import ResultTable
from artemis_lifecycle.deletion.batches import (
    OUTCOMES,
    DeletionJob,
    Outcome,
    outcome_frame,
    outcome_tables,
    read_outcomes,
    waiting_rows,
)
from artemis_lifecycle.errors import NoSuchPlan, StorageError
from artemis_lifecycle.escaping import json_text, markdown
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.journal import BatchRecord, BatchState, JobRecord
from artemis_lifecycle.protection.places import RECEIPTS
from artemis_lifecycle.spark.runner import Spark
from artemis_lifecycle.storage.columnar import parquet_bytes
from artemis_lifecycle.storage.frames import pieces
from artemis_lifecycle.storage.location import DEFAULT_RULES, hash_column
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.tabular import Shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class DeletionReport(Shown):
    """What happened to a job's files over all runs so far. Counts are files; `bytes` is the size of the deleted ones.
    Files that were moved into quarantine count as deleted, because the table no longer has them; `quarantine` is their
    folder.

    `pending` files wait for another run: `paused` says why, `pending_until` when their plan's grace ends. In an
    expiration, files that are kept only for now (a writer, another table's hold, an open plan, a missing archived copy)
    count as both kept and pending. A dry run counts `would_delete` and `would_delete_bytes` instead of deleted files.
    """

    job_id: str
    table: str
    deleted: int = 0
    already_absent: int = 0
    kept: int = 0
    failed: int = 0
    bytes: int = 0
    pending: int = 0
    pending_until: datetime | None = None
    paused: str | None = None
    quarantine: str | None = None
    dry_run: bool = False
    would_delete: int = 0
    would_delete_bytes: int = 0
    _files: Callable[[], DataFrame] | None = field(default=None, repr=False, compare=False)

    def files(self) -> DataFrame:
        """Return DataFrame[path, kind, size_in_bytes, outcome, reason] of every file with an outcome.

        `outcome` is deleted, quarantined, absent, kept or failed; in a dry run also would_delete.
        """
        if self._files is None:
            from pyspark.sql import SparkSession

            return SparkSession.builder.getOrCreate().createDataFrame([], OUTCOMES)
        return self._files()

    @property
    def has_outcomes(self) -> bool:
        """Return True if any file has an outcome."""
        return bool(self.deleted or self.already_absent or self.kept or self.failed)

    @classmethod
    def foreseen(cls, job: DeletionJob, size_in_bytes: int, files: Callable[[], DataFrame]) -> DeletionReport:
        """Return the dry-run report of a job that is not due yet: all its files, DataFrame[path, kind, size_in_bytes,
        reason]."""

        def judged() -> DataFrame:
            from pyspark.sql import functions as F

            return files().select("path", "kind", "size_in_bytes", F.lit("would_delete").alias("outcome"), "reason")

        return cls(
            job_id=job.job_id,
            table=job.table,
            dry_run=True,
            would_delete=job.files,
            would_delete_bytes=size_in_bytes,
            _files=judged,
        )


def report_of(
    spark: Spark, stores: Stores, operations: Operations, job: DeletionJob, root: str, paused: str | None = None
) -> DeletionReport:
    """Return the report of a job from the journal. If the job never began, all its files are pending."""
    quarantine = operations.quarantines.find(job.job_id)
    known = operations.journal.job(job.job_id)
    counted: Sequence[JobRecord | BatchRecord]
    if known is not None and known.forgotten_at is not None:
        counted, pending = [known], 0
    else:
        settled = (BatchState.DONE, BatchState.FAILED, BatchState.WAITING)
        batches = [each for each in operations.journal.batches(job.job_id) if each.state in settled]
        waiting = sum(
            pc.sum(waiting_rows(read_outcomes(stores, root, job.job_id, each.batch))).as_py() or 0
            for each in batches
            if each.state == BatchState.WAITING
        )
        counted, pending = batches, job.files - sum(each.files for each in batches) + waiting
    return DeletionReport(
        job_id=job.job_id,
        table=job.table,
        deleted=sum(record.deleted for record in counted),
        already_absent=sum(record.absent for record in counted),
        kept=sum(record.kept for record in counted),
        failed=sum(record.failed for record in counted),
        bytes=sum(record.deleted_bytes for record in counted),
        pending=pending,
        paused=paused,
        quarantine=None if quarantine is None else quarantine.folder,
        _files=lambda: outcome_frame(spark, stores, root, job.job_id),
    )


# --- results ----------------------------------------------------------------------------------------------------------
# The outcomes of deletions as rows of the result table `deletions`: a history for people and audits. Deletion never
# reads it: the journal in Postgres and the stored outcomes decide.

DELETIONS = ResultTable(
    "deletions",
    """
    job_id string COMMENT 'plan id or scan id',
    job_kind string COMMENT 'expiration, orphans or dropped',
    table_name string,
    table_uuid string,
    path string COMMENT 'as the metadata or the listing spelled it',
    kind string,
    size_in_bytes bigint,
    outcome string COMMENT 'deleted, absent, kept or failed',
    reason string,
    recorded_at timestamp COMMENT 'when the run ended that recorded it, by the clock of Postgres'
    """,
    key="job_id",
    instant="recorded_at",
)


def outcome_rows(stores: Stores, root: str, job: JobRecord, recorded_at: datetime) -> Iterator[pa.Table]:
    """Yield the job's outcomes with the columns of DELETIONS."""
    same = {"job_id": job.job_id, "job_kind": str(job.kind), "table_name": job.table, "table_uuid": job.table_uuid}
    instant = pa.scalar(recorded_at, pa.timestamp("us", "UTC"))
    for outcomes in outcome_tables(stores, root, job.job_id):
        columns: dict[str, pa.Array] = {name: pa.repeat(value, outcomes.num_rows) for name, value in same.items()}
        columns |= {name: outcomes.column(name) for name in ("path", "kind", "size_in_bytes", "outcome", "reason")}
        yield pa.table({**columns, "recorded_at": pa.repeat(instant, outcomes.num_rows)})


# --- receipt ----------------------------------------------------------------------------------------------------------
# The receipt of a finished deletion: what happened to every path and who decided it. It is meant for auditors.
#
#     <table's metadata folder>/artemis-receipts/<job id>/receipt.json, receipt.md and files-<n>.parquet
#
# It is stored with the table, not with the lifecycle's state, so that it outlives that state. The orphan scan
# recognizes the folder. The Parquet parts have every path with its outcome (columns: `batches.OUTCOMES`). The JSON
# has their checksums.

_SAMPLE = 100
_GONE: tuple[Outcome, ...] = ("deleted", "quarantined", "absent")


@dataclass(frozen=True)
class Receipt:
    """The results of a finished job. `outcomes` and `kinds` are files and bytes by name; `kept` is files by reason.
    `sample` says how many of the deleted paths were checked afterward, and which of those still existed. `details`
    comes from the plan or scan: snapshots, approvals, commit. `files` has each part's name, rows and checksum."""

    job_id: str
    kind: str
    table: str
    table_uuid: str
    location: str
    began_at: datetime
    ended_at: datetime
    by: str
    outcomes: Mapping[str, Mapping[str, int]]
    kinds: Mapping[str, Mapping[str, int]]
    kept: Mapping[str, int]
    sample: Mapping[str, Any]
    quarantine: str | None
    details: Mapping[str, Any]
    files: tuple[Mapping[str, Any], ...]

    def to_json(self) -> str:
        """Return the receipt as it is stored."""
        return json_text({"receipt": 1, **asdict(self)}, indent=1, default=_plain)

    def to_markdown(self) -> str:
        """Return the receipt as Markdown. The parts have every path."""
        lines = [
            f"# Receipt: {markdown(self.kind)} {markdown(self.job_id)}",
            "",
            f"Table {markdown(self.table, code=True)} ({markdown(self.table_uuid)}), "
            f"{self.began_at:%Y-%m-%d %H:%M:%S} to {self.ended_at:%Y-%m-%d %H:%M:%S} UTC, by {markdown(self.by)}.",
            "",
            "| outcome | files | bytes |",
            "|---|---|---|",
            *(f"| {markdown(name)} | {each['files']:,} | {each['bytes']:,} |" for name, each in self.outcomes.items()),
            "",
            "| kind of what is gone | files | bytes |",
            "|---|---|---|",
            *(f"| {markdown(name)} | {each['files']:,} | {each['bytes']:,} |" for name, each in self.kinds.items()),
            "",
        ]
        if self.kept:
            lines += ["| kept because | files |", "|---|---|"]
            lines += [f"| {markdown(reason)} | {files:,} |" for reason, files in self.kept.items()] + [""]
        if self.quarantine is not None:
            lines += [
                f"Moved to {markdown(self.quarantine, code=True)}; `artemis undelete {self.job_id}` brings it back.",
                "",
            ]
        checked, existing = self.sample["looked_at"], self.sample["still_there"]
        lines += [f"Checked afterward: {checked} of the deleted paths; {len(existing)} still existed.", ""]
        lines += [
            f"- {markdown(key.replace('_', ' '))}: {markdown(_said(value))}" for key, value in self.details.items()
        ]
        lines += ["", "Every path, with its outcome and reason:", ""]
        lines += [
            f"- {markdown(part['name'], code=True)}: {part['rows']:,} rows, sha256 {part['sha256']}"
            for part in self.files
        ]
        return "\n".join(lines) + "\n"


def receipt_folder(metadata_folder: str, job_id: str) -> str:
    return f"{metadata_folder}/{RECEIPTS}/{job_id}"


def write_receipt(
    stores: Stores,
    root: str,
    job: DeletionJob,
    journal: JobRecord,
    *,
    folder: str,
    by: str,
    ended_at: datetime,
    quarantine: str | None,
    details: Mapping[str, Any],
) -> Receipt:
    """Write the receipt of a job in which every file has an outcome. A second call replaces an interrupted attempt's
    files. The JSON is written last: if it exists, the receipt is complete."""
    outcomes: dict[str, Counter[str]] = {}
    kinds: dict[str, Counter[str]] = {}
    kept: Counter[str] = Counter()
    sample: list[tuple[int, str]] = []
    files = []
    for number, rows in enumerate(pieces(outcome_tables(stores, root, job.job_id))):
        _count(outcomes, rows, "outcome")
        gone = rows.filter(pc.field("outcome").isin(_GONE))
        _count(kinds, gone, "kind")
        for reason in rows.filter(pc.field("outcome") == "kept").column("reason").value_counts().to_pylist():
            kept[reason["values"]] += reason["counts"]
        # The hash selects the same paths each time, and never more than are checked.
        paths = pa.chunked_array(gone.column("path").chunks, pa.string()).combine_chunks()
        hashes = hash_column(paths, DEFAULT_RULES)
        first = hashes.argsort(kind="stable")[:_SAMPLE].tolist()
        sample = sorted([*sample, *((int(hashes[row]), paths[row].as_py()) for row in first)])[:_SAMPLE]
        data = parquet_bytes(rows)
        name = f"files-{number:06d}.parquet"
        with around("receipt.part"):
            stores.write(f"{folder}/{name}", data, overwrite=True)
        files.append({"name": name, "rows": rows.num_rows, "sha256": hashlib.sha256(data).hexdigest()})
    heads = stores.heads([path for _, path in sample])
    existing = [path for (_, path), found in zip(sample, heads, strict=True) if found is not None]
    receipt = Receipt(
        job_id=job.job_id,
        kind=job.kind,
        table=job.table,
        table_uuid=job.table_uuid,
        location=f"{folder}/receipt.json",
        began_at=journal.started_at or ended_at,
        ended_at=ended_at,
        by=by,
        outcomes={name: dict(outcomes[name]) for name in sorted(outcomes)},
        kinds={name: dict(kinds[name]) for name in sorted(kinds)},
        kept=dict(sorted(kept.items())),
        sample={"looked_at": len(sample), "still_there": existing},
        quarantine=quarantine,
        # In the form in which it will be read.
        details=json.loads(json.dumps(details, default=_plain)),
        files=tuple(files),
    )
    for name, text in (("receipt.md", receipt.to_markdown()), ("receipt.json", receipt.to_json())):
        with around("receipt.write"):
            stores.write(f"{folder}/{name}", text.encode(), overwrite=True)
    return receipt


def read_receipt(stores: Stores, folder: str, job_id: str, table: str) -> Receipt:
    """Return the stored receipt. Raises NoSuchPlan before the job is over, and StorageError if the receipt is
    damaged."""
    path = f"{folder}/receipt.json"
    if stores.head(path) is None:
        raise NoSuchPlan(
            f"There is no receipt of {job_id}",
            table=table,
            path=path,
            hint="the receipt is written after the last file has its outcome: let the deletion finish",
        )
    try:
        stored = json.loads(stores.read(path))
        stored.pop("receipt")
        for name in ("began_at", "ended_at"):
            stored[name] = datetime.fromisoformat(stored[name])
        return Receipt(**{**stored, "files": tuple(stored["files"])})
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StorageError(
            f"The receipt is damaged: {error}",
            table=table,
            path=path,
            hint=f"move the damaged file away, then run artemis receipt {job_id}: it writes the receipt again "
            "from the journal",
        ) from error


def _count(counters: dict[str, Counter[str]], rows: pa.Table, column: str) -> None:
    totals = rows.group_by(column).aggregate([("path", "count"), ("size_in_bytes", "sum")])
    for row in totals.to_pylist():
        counter = counters.setdefault(row[column], Counter())
        counter["files"] += row["path_count"]
        counter["bytes"] += row["size_in_bytes_sum"] or 0


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _said(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value[:20])) + (f", … ({len(value)} in all)" if len(value) > 20 else "") or "none"
    return "none" if value is None else str(value)
