"""Figures and pictures on asset pages are exact, harmless and bounded: each materialization stores them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
from dagster import MarkdownMetadataValue, TableMetadataValue
from dagster._serdes import serialize_value

from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.expiration.curve import CurvePoint, RefCost, RetentionCurve
from artemis_lifecycle.orphans.trend import ScanPoint, ScanTrend

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_table_keeps_numbers_exact_times_readable_and_rows_bounded() -> None:
    rows = [(6955089509924965424, 7, 0.5, True, START, pd.NaT, None, "a\x1bb" + "x" * 1000)] * 110
    found = ui_metadata.table(["id", "files", "share", "own", "at", "never", "none", "text"], rows)
    assert isinstance(found, TableMetadataValue)
    assert len(found.records) == 101 and found.records[-1].data["id"] == "… and 10 more"
    first = dict(found.records[0].data)
    text = first.pop("text")
    assert first == {
        "id": "6955089509924965424",
        "files": 7,
        "share": 0.5,
        "own": True,
        "at": "2026-01-01 00:00:00",
        "never": None,
    }
    assert isinstance(text, str) and text.startswith("a\\x1bb") and len(text) < 600
    kinds = {column.name: column.type for column in found.schema.columns}
    assert (kinds["files"], kinds["share"], kinds["own"], kinds["id"]) == ("int", "float", "bool", "string")
    assert len(serialize_value(found)) < 100_000
    assert ui_metadata.table(["none"], []).value == "none"


def test_a_table_of_a_frame_has_pythons_numbers() -> None:
    frame = pd.DataFrame({"files": pd.Series([1, 2], dtype="int64"), "current": [True, False]})
    found = ui_metadata.table(list(frame.columns), frame.itertuples(index=False))
    assert isinstance(found, TableMetadataValue)
    assert [dict(record.data) for record in found.records] == [
        {"files": 1, "current": True},
        {"files": 2, "current": False},
    ]


@pytest.mark.seconds
def test_the_busiest_pictures_fit_into_their_bound() -> None:
    points = tuple(
        ScanPoint(
            f"s{n}", START + timedelta(days=n), 10_000, n * 37 % 500, n * 91 % 977, n * 13 % 300, n * 7 % 90, True
        )
        for n in range(30)
    )
    curve = RetentionCurve(
        "artemis.orbital_object_registry",
        "file:/w/1.metadata.json",
        tuple(CurvePoint(n * 86_400_000, n, n * 10, n * n * 1_000_003, n == 30) for n in range(60)),
        tuple(RefCost(f"release-{n:02}", "tag", 10**18 + n, 3, 20, 10**9 + n * 10**8) for n in range(12)),
    )
    for plot in (ScanTrend("artemis.orbital_object_registry", points, 1.0).plot, curve.plot):
        shown = ui_metadata.picture(plot, "a picture")
        assert isinstance(shown, MarkdownMetadataValue), shown
        assert len(shown.md_str or "") < ui_metadata.PICTURE_CHARACTERS


def test_what_a_step_waits_for_comes_first_then_its_figures_and_dagsters_keys_last() -> None:
    said = {
        "dagster/partition_row_count": 3,
        "by_kind": ui_metadata.table(["kind", "bytes"], [("data", 1_500_000)]),
        "plan_id": "p",
        "bytes_deleted": 1_500_000,
        "files": 1_200,
        "score_orphan_share": 99.5,
        "failed": 0,
        "seconds_waited": 90.0,
        "dry_run": True,
        "seconds": 4.25,
    }
    shown = ui_metadata.figures_first(said)
    figures = ["bytes_deleted", "files", "score_orphan_share", "failed", "seconds_waited", "seconds"]
    assert [*shown] == ["summary", *figures, "plan_id", "dry_run", "by_kind", "dagster/partition_row_count"]
    line = "bytes deleted: 1.5 MB; files: 1,200; score orphan share: 99.50; seconds waited: 0:01:30; seconds: 4.2 s"
    assert shown["summary"].value == line
    assert shown["by_kind"].records[0].data == {"kind": "data", "bytes": "1.5 MB"}
    waits = {"outcome": "waiting", "next": "artemis release", "why": "a hold", "waits_for": "Held"}
    assert [*ui_metadata.figures_first({**said, **waits})][:4] == ["waits_for", "why", "next", "summary"]
    assert ui_metadata.figures_first({"a": "b"}) == {"a": "b"}
