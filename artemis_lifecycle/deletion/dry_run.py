"""The dry run of a deletion: it makes the same checks as a real run, and changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from artemis_lifecycle.deletion.batches import MOST_PER_BATCH, DeletionJob, require_count, sealed_pieces
from artemis_lifecycle.deletion.identities import Identities
from artemis_lifecycle.deletion.outcomes import OUTCOMES, PieceOutcomes
from artemis_lifecycle.deletion.recheck import recheck
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.protection.protection import Protection
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.frames import arrow_schema, frame_batches


def dry_run_of(context: DeletionContext, job: DeletionJob) -> DeletionReport:
    """Make the checks of a real run for every file. Deletes and writes nothing."""
    protection = Protection(context, job)
    identities = Identities(replace(context, renew=None), job)

    def considered() -> Iterator[pa.Array]:
        return (batch.column("path") for batch in frame_batches(job.files_location, context.stores))

    protection.require_no_hold()
    protection.refresh_neighbors()
    protection.full(considered)
    found: list[pa.Table] = []
    for piece in sealed_pieces(context.stores, job, MOST_PER_BATCH):
        judged = recheck(context, protection, considered, identities, piece)
        if judged.unproven and identities.prove(piece.take(judged.unproven)):
            judged = recheck(context, protection, considered, identities, piece)
        piece_outcomes = PieceOutcomes(piece)
        piece_outcomes.put(np.flatnonzero(~judged.going), "absent")
        piece_outcomes.put(np.flatnonzero(judged.going), "would_delete")
        piece_outcomes.put_each(judged.failed, "failed")
        piece_outcomes.put_each(judged.kept, "kept")
        found.append(piece_outcomes.table(""))
    outcomes = pa.concat_tables([arrow_schema(OUTCOMES).empty_table(), *found])
    require_count(job, outcomes.num_rows, job.files_location)
    totals = outcomes.group_by("outcome").aggregate([("path", "count"), ("size_in_bytes", "sum")]).to_pylist()
    files = Counter({row["outcome"]: row["path_count"] for row in totals})
    sizes = Counter({row["outcome"]: row["size_in_bytes_sum"] or 0 for row in totals})
    return DeletionReport(
        job_id=job.job_id,
        table=job.table,
        deleted=0,
        already_absent=files["absent"],
        kept=files["kept"],
        failed=files["failed"],
        bytes=0,
        dry_run=True,
        would_delete=files["would_delete"],
        would_delete_bytes=sizes["would_delete"],
        _files=lambda: Runner(context.spark).rows(outcomes).frame(),
    )
