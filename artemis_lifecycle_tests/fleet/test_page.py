"""The fleet's page and a table's page: what they link, that they fit a laptop, and that names of others are text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import pytest

from artemis_lifecycle.expiration.curve import CurvePoint, RefCost, RetentionCurve
from artemis_lifecycle.fleet.fleet import Fleet, FleetTable
from artemis_lifecycle.fleet.page import Links, address, table_page
from artemis_lifecycle.metadata.types import Ref, Snapshot, SnapshotHistory, SnapshotSummary
from artemis_lifecycle.operations.fleet import HealthPoint
from artemis_lifecycle.operations.holds import Hold
from artemis_lifecycle.operations.journal import JobRecord
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus
from artemis_lifecycle.upkeep.costs import TableCosts, TierCost
from artemis_lifecycle.upkeep.score import HealthHistory

AT = datetime(2026, 11, 27, 6, tzinfo=UTC)
LINKS = Links("https://dagster.example.org/", "lake location", ("lake",))
RECEIPT = "s3://bucket/t/metadata/artemis-receipts/plan-1/receipt.md"
EMPTY = FleetTable(
    **dict.fromkeys(FleetTable.__dataclass_fields__),  # type: ignore[arg-type]
)
TABLE = replace(
    EMPTY,
    table="sales.orders, eu",
    overdue=False,
    waits_for=("approval of plan-1 since 2026-11-26 04:00: it has 120,000 files, more than max_files",),
    red_checks=("physical_deletion: nothing_reachable_deleted",),
    holds=1,
    paused=False,
    plan_status="open",
    freed_bytes=5,
    freeable_bytes=7,
    planned_at=AT - timedelta(hours=5),
    receipt=RECEIPT,
    page="tables/u-1.html",
)


class Parsed(HTMLParser):
    """The links of a page by their text, and its tables as rows of texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links, self.tables = dict[str, str](), list[list[list[str]]]()
        self._href, self._in_cell = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._href = dict(attrs)["href"] or ""
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._href:
            self.links[data], self._href = self._href, ""
        if self._in_cell:
            self.tables[-1][-1][-1] += data


def test_each_table_links_its_page_its_partition_its_plan_its_approval_and_its_receipt() -> None:
    links = Parsed(Fleet(AT, (TABLE,), links=LINKS).html).links
    assert links["page"] == "tables/u-1.html"
    for text, asset in (("Dagster", "snapshot_history"), ("plan", "expiration_plan")):
        parts = urlsplit(links[text])
        assert (parts.netloc, parts.path) == ("dagster.example.org", f"/assets/lake/{asset}")
        assert parse_qs(parts.query) == {"view": ["partitions"], "partition": ["encoded:sales.orders%2C eu"]}
    assert links["approve"] == "https://dagster.example.org/locations/lake%20location/jobs/approve/playground"
    assert links["receipt"].endswith("bucket?prefix=t/metadata/artemis-receipts/plan-1/receipt.md")


def test_without_an_address_of_dagster_and_without_a_plan_there_is_no_link() -> None:
    idle = replace(TABLE, waits_for=(), plan_status=None, page=None, receipt=None)
    assert Parsed(Fleet(AT, (TABLE,)).html).links.keys() == {"page", "receipt"}
    assert Parsed(Fleet(AT, (idle,)).html).links == {}
    assert Parsed(Fleet(AT, (idle,), links=LINKS).html).links.keys() == {"Dagster"}


def test_the_ages_of_steps_stand_in_a_table_of_their_own_so_that_each_fits_a_laptop() -> None:
    state, ages = Parsed(Fleet(AT, (TABLE,), links=LINKS).html).tables
    assert [len(rows[0]) for rows in (state, ages)] == [14, 15]
    assert state[1][0] == ages[1][0] == TABLE.table
    assert ages[1][1] == "5 h" and set(ages[1][2:]) == {"never"}


@pytest.mark.parametrize("location", ["javascript:alert(1)//x", "gs://bucket/x", "", "https://evil.example.org/x"])
def test_only_local_files_and_the_stores_console_are_linked(location: str) -> None:
    assert address(location) is None
    assert address("file:///w/it's a <b>") == address("file:/w/it's a <b>") == "file:///w/it%27s%20a%20%3Cb%3E"


def _page(name: str = "sales.orders") -> str:
    summary = SnapshotSummary("append", {"total-data-files": "12", "total-files-size": "1500000", "total-records": "9"})
    snapshots = tuple(
        Snapshot(6955089509924965424 + n, None, n, 1_700_000_000_000 + n, None, summary=summary) for n in range(3)
    )
    refs = {"main": Ref("main", snapshots[-1].snapshot_id, "branch")}
    history = SnapshotHistory(name, "file:/w/1.metadata.json", "u-1", snapshots, refs, (), AT)
    scores = HealthHistory(name, [HealthPoint("u-1", AT - timedelta(days=n), 60 + n, {}) for n in (2, 1, 0)])
    points = tuple(CurvePoint(n * 86_400_000, n, n, n * 1_000_000, n == 2) for n in range(4))
    curve = RetentionCurve(name, "", points, (RefCost("q3<b>", "tag", 5, 1, 2, 3_000_000),))
    tiers = (TierCost("live", "STANDARD", 3, 12, 1_500_000, 0, 0.5), TierCost("cold", "GLACIER_IR", 7, 9, 2_000_000, 0))
    hold = Hold("h-1", "u-1", name, "legal", "legal", "case <8>", (), AT, None, None)
    plan = PlanRecord(
        "plan-1", "plan-1", "u-1", name, PlanStatus.DONE, "", "", "as-of", 4, (), 20, 8_000_000, "{}", AT, due_at=AT
    )
    job = JobRecord("plan-1", "expiration", "u-1", name, RECEIPT, AT, AT, files=20, deleted_bytes=8_000_000)
    unfinished = replace(job, job_id="scan-2", finished_at=None, files_location="")
    return table_page(
        AT, history, scores, curve, TableCosts(name, "EUR", tiers, ()), [hold], [plan], [job, unfinished], LINKS
    )


def test_a_tables_page_has_its_snapshots_holds_plans_deletions_and_tiers() -> None:
    page = _page()
    found = Parsed(page)
    snapshots, alone, holds, plans, deleted, tiers = found.tables
    assert [row[0] for row in snapshots[1:]] == [str(6955089509924965424 + n) for n in (2, 1, 0)]
    assert snapshots[1][1:] == ["2023-11-14 22:13", "append", "12", "1.5 MB", "9"]
    assert alone[1] == ["q3<b>", "tag", "5", "2", "3.0 MB"]
    assert holds[1] == ["h-1", "legal", "legal", "case <8>", "all", ""]
    assert plans[1][:4] == ["plan-1", "done", "2026-11-27 06:00", "4"]
    assert deleted[1][4:] == ["8.0 MB", "receipt"] and deleted[2][5] == ""
    assert tiers[2] == ["cold", "GLACIER_IR", "7", "9", "2.0 MB", ""]
    assert page.count("<svg") == 3 and "case <8>" not in page and "q3<b>" not in page
    assert found.links["all tables"] == "../index.html"
    assert found.links["table_health"] == LINKS.asset("table_health", "sales.orders")


def test_the_name_of_a_table_is_text_on_its_page() -> None:
    assert "<script>alert" not in _page("db.<script>alert(1)</script>")
