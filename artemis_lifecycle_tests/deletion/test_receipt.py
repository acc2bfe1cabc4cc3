"""A receipt says what became of every path, survives a death at each of its writes, and is nobody's orphan."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.deletion.report import RECEIPTS
from artemis_lifecycle.errors import NoSuchPlan, StorageError
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import Killed, lapse
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table
from artemis_lifecycle_tests.policies import AT_ONCE


def test_a_receipt_is_written_next_to_the_table(make_config: MakeConfig, spark: SparkSession) -> None:
    config = make_config(
        defaults={**AT_ONCE, "deletion": {"grace": "0s", "max_files": 1}, "cold_tier": {"enabled": False}},
        tables={"db.*": {}},
    )
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        spark.sql(f"INSERT OVERWRITE {config.catalogs.live.name}.{table} SELECT /*+ COALESCE(1) */ 9 AS id")
        ids = ids_of(lifecycle, table)
        plan = lifecycle.plan_expiration(table)
        with pytest.raises(NoSuchPlan):
            lifecycle.receipt(plan)
        lifecycle.approve(plan, who="ada", why="agreed", what="large")
        committed = lifecycle.commit_expiration(plan)
        died: set[str] = set()

        def die(name: str) -> None:
            if name.startswith("receipt") and name not in died:
                died.add(name)
                raise Killed(name)

        while True:
            try:
                with crash_points.installed(die):
                    report = lifecycle.delete_files(plan)
                break
            except Killed:
                lapse(lifecycle, "leases")
        assert len(died) == 4 and report.deleted == plan.summary.files
        receipt = lifecycle.receipt(plan.plan_id)
        assert lifecycle.receipt(plan) == receipt

        # Every path, once, with checksums that hold.
        folder = local(receipt.location).parent
        assert folder.parent.name == RECEIPTS and folder.parent.parent.name == "metadata"
        rows = []
        for part in receipt.files:
            data = (folder / part["name"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == part["sha256"]
            rows += pq.read_table(io.BytesIO(data)).to_pylist()
        assert sorted(row["path"] for row in rows) == sorted(row["path"] for row in plan.files().collect())
        assert receipt.outcomes == {"deleted": {"files": report.deleted, "bytes": report.bytes}}
        assert sum(each["files"] for each in receipt.kinds.values()) == report.deleted
        assert receipt.sample == {"looked_at": report.deleted, "still_there": []}
        stored = json.loads((folder / "receipt.json").read_bytes())
        assert stored["details"]["expired_snapshots"] == ids[:-1]
        assert stored["details"]["approved_large"] == "ada: agreed"
        assert stored["details"]["committed_as"] == committed.metadata_location
        markdown = (folder / "receipt.md").read_text()
        assert (
            markdown == receipt.to_markdown()
            and f"| deleted | {report.deleted} |" in markdown
            and "ada: agreed" in markdown
        )

        # No scan takes it, however old it is; a stranger in its folder's neighbourhood is one all the same.
        stranger = folder.parent.parent / "artemis-receipts.txt"
        stranger.write_text("not one of ours")
        scan = lifecycle.scan_orphans(table)
        assert [Path(row["path"]).name for row in scan.files().collect()] == [stranger.name]
        verdicts = {local(row["path"]): row["verdict"] for row in scan.unreferenced().collect()}
        assert verdicts[folder / "receipt.json"] == verdicts[folder / receipt.files[0]["name"]] == "receipt"
        assert lifecycle.delete_orphans(scan).deleted == 1
        orphans = lifecycle.receipt(scan)
        assert orphans.kind == "orphans" and orphans.outcomes["deleted"]["files"] == 1
        assert (folder / "receipt.json").exists()

        # Damaged it says so; lost it is written again, from the journal.
        (folder / "receipt.json").write_text("{")
        with pytest.raises(StorageError, match="damaged"):
            lifecycle.receipt(plan)
        (folder / "receipt.json").unlink()
        assert lifecycle.receipt(plan) == receipt
