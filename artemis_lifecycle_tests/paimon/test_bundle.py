"""The tests' own Paimon tables have all kinds of files that the product has to know, and Paimon expires and cleans
them: what the other tests here stand on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle_tests.paimon.bundle import create

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_paimon_expires_what_is_old_and_keeps_what_a_tag_holds(calls: Any, warehouse: Path) -> None:
    table = create(calls, warehouse, keyed=True, options={"bucket": "1"})
    for number in range(1, 6):
        assert table.write([(1, "a", f"v{number}")]) == number
        table.place(number, NOW + timedelta(minutes=number))
    table.tag("kept", 2)
    assert table.snapshots() == [1, 2, 3, 4, 5]

    assert table.expire(retain_max=2, retain_min=2) == 3

    assert (table.snapshots(), table.tags()) == ([4, 5], {"kept": 2})
    assert table.read(scan_tag_name="kept") == [(1, "a", "v2")]
    assert table.read(scan_snapshot_id=4) == [(1, "a", "v4")]


def test_a_copy_of_a_folder_is_a_table_of_its_own(calls: Any, warehouse: Path, tmp_path: Path) -> None:
    table = create(calls, warehouse, partitioned=True, options={"bucket": "-1"})
    for number in range(3):
        table.write([(number, f"p{number}", None)])
    copy = table.copy(tmp_path / "copy")
    assert copy.files() == table.files()

    copy.expire(retain_max=1, retain_min=1)

    assert (copy.snapshots(), table.snapshots()) == ([3], [1, 2, 3])
    assert copy.read() == table.read() == [(0, "p0", None), (1, "p1", None), (2, "p2", None)]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"bucket": "1", "changelog-producer": "input"}, "changelog-"),
        ({"bucket": "1", "changelog-producer": "lookup"}, "changelog-"),
        ({"bucket": "1", "changelog-producer": "full-compaction"}, "changelog-"),
        ({"bucket": "-1"}, "index-"),
        ({"bucket": "1", "deletion-vectors.enabled": "true"}, "index-"),
        ({"bucket": "1", "file-index.bloom-filter.columns": "v", "file-index.in-manifest-threshold": "1 b"}, ".index"),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else value,
)
def test_tables_have_each_kind_of_file(calls: Any, warehouse: Path, options: Mapping[str, str], kind: str) -> None:
    table = create(calls, warehouse, keyed=True, options=options)
    table.write([(key, "a", "old") for key in range(10)], compact="fully")
    table.write([(3, "a", "new")], "+U", compact="at will")
    table.write([(4, "a", "new")], "-D", compact="at will")

    assert any(kind in name for name in table.listing() if not name.startswith("changelog/"))
    expected = [(key, "a", "new" if key == 3 else "old") for key in range(10) if key != 4]
    assert table.read() == expected


def test_branches_consumers_statistics_and_changelogs_have_their_files(calls: Any, warehouse: Path) -> None:
    decoupled = {"changelog.num-retained.min": "5", "changelog.num-retained.max": "20", "changelog-producer": "input"}
    retained = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2"}
    table = create(calls, warehouse, keyed=True, options={"bucket": "1", **decoupled, **retained})
    table.write([(1, "a", "one")])
    table.tag("start", 1, retained=timedelta(days=1))
    table.create_branch("side", "start")
    table.write([(2, "a", "two")], branch="side")
    table.consume("reader", 2)
    table.analyze()
    for number in range(4):
        table.write([(1, "a", f"{number}")])
    assert "tagTimeRetained" in json.loads((table.folder / "tag" / "tag-start").read_text())
    assert any(name.startswith("statistics/") for name in table.listing())

    table.delete_consumer("reader")
    assert table.expire_as_writer() > 0

    assert table.changelogs() and table.snapshots("side") == [1, 2]
    assert table.contents()["side snapshot 2"] == [(1, "a", "one"), (2, "a", "two")]


def test_partitions_of_all_types_have_their_folders(calls: Any, warehouse: Path) -> None:
    types = {"k": "BIGINT", "d": "DATE", "t": "TIMESTAMP(3)", "n": "DECIMAL(10, 2)", "b": "BOOLEAN", "s": "STRING"}
    table = create(
        calls, warehouse, columns=[*types.items()], partitioned=["d", "n", "b", "s", "t"], options={"bucket": "-1"}
    )
    table.write(
        [
            (1, "2026-11-20", "2026-11-20 10:00:00.123", "-12.50", "true", "a=b/c d"),
            (2, "1969-12-31", None, None, "false", "a much longer text than fits into eight bytes: ü"),
        ]
    )

    one, other = sorted(name.rpartition("/")[0] for name in table.listing() if name.endswith(".parquet"))
    assert other == "d=20777/n=-12.50/b=true/s=a%3Db%2Fc d/t=2026-11-20T10%3A00%3A00.123/bucket-0"
    assert one.startswith("d=-1/n=__DEFAULT_PARTITION__/b=false/s=a much")
