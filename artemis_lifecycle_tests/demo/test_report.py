"""The report tells what went wrong, and reads on a narrow console."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from examples.mission.proofs import Proof
from examples.mission.report import Answer, DemoReport, TableReport, TierReport, show, size
from examples.mission.schedule import TABLES

GREEN = TableReport(
    table=TABLES[0],
    kind="iceberg",
    window="30d",
    commits=92,
    snapshots_kept=34,
    snapshots_expired=58,
    refs_expired=1,
    files_deleted=338,
    bytes_deleted=2_400_000,
    files_copied=393,
    bytes_copied=2_800_000,
    orphans_removed=7,
    orphan_bytes=98_300,
    files_left_in_flight=1,
    checks_passed=7,
    checks_failed=(),
    failures=(),
    step_seconds={"snapshot_history": 0.2, "expiration_plan": 4.25},
    tiers=(TierReport("live", 34, 9_000_000), TierReport("cold", 40, 2_500_000), TierReport("deep-archive", 18, 700)),
)
REPORT = DemoReport(
    tables=tuple(replace(GREEN, table=table) for table in TABLES),
    proofs=tuple(Proof(table, "rows are the same", True, "34 of 34 read") for table in TABLES),
    phase_seconds={"Start Spark": 4.0, "The walk": 60.0},
    answers=(
        Answer(TABLES[0], "live", "", 9_100_000_000_000_000_001, 74, 1.0, 0.4),
        Answer(TABLES[0], "deep-archive", "DEEP_ARCHIVE", 17, 61, 5.0, 0.9, "case 7, approved by Bob"),
    ),
)


def _text(report: DemoReport, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_report_shows_each_table_each_step_and_each_proof() -> None:
    text = _text(REPORT)
    for expected in (
        "338 (2.4 MB)",
        "393 (2.8 MB)",
        "expiration_plan",
        "4.2",
        "34 of 34 read",
        "64 s in all",
        "18 (700 B)",
        "case 7",
    ):
        assert expected in text
    assert "All 3 proofs hold" in text
    assert REPORT.failures == ()


def test_report_fits_eighty_columns() -> None:
    assert max(map(len, _text(REPORT).splitlines())) <= 80


def test_report_names_a_proof_a_check_and_a_step_that_failed() -> None:
    broken = DemoReport(
        tables=(replace(GREEN, checks_failed=("cold_copy_verified",), failures=("orphan_scan: no listing",)),),
        proofs=(Proof(TABLES[0], "rows are the same", False, "1 differs"),),
        phase_seconds={},
    )
    assert broken.failures == (
        f"{TABLES[0]}: orphan_scan: no listing",
        f"{TABLES[0]}: check cold_copy_verified is red",
        f"{TABLES[0]}: rows are the same: 1 differs",
    )
    assert "The demo failed" in _text(broken)
    assert "proofs hold" not in _text(broken)


def test_sizes_read_as_people_write_them() -> None:
    assert [size(count) for count in (0, 999, 1000, 1_550_000, 3_000_000_000)] == [
        "0 B", "999 B", "1.0 kB", "1.6 MB", "3.0 GB",
    ]  # fmt: skip
