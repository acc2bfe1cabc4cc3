"""Paimon as the oracle: what its own expiration leaves over random histories, and where it fails open."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from artemis_lifecycle_tests.paimon.bundle import Table, create
from artemis_lifecycle_tests.paimon.histories import ALONE, WITH_CHANGELOGS, live

TOMORROW = datetime.now(UTC) + timedelta(days=1)


@pytest.mark.parametrize("seed", range(2))
def test_expiration_leaves_all_that_is_read_and_nothing_else(calls: Any, warehouse: Path, seed: int) -> None:
    history = live(calls, warehouse, seed, ALONE)
    table, said = history.table, "\n".join(history.said)
    before, garbage = table.contents(), table.unreached()

    table.expire(retain_max=3, retain_min=1)

    after = table.contents()
    assert after == {what: rows for what, rows in before.items() if what in after}, said
    assert table.unreached() == garbage, said


def test_decoupled_changelogs_outlive_their_snapshots(calls: Any, warehouse: Path) -> None:
    lives = [live(calls, warehouse / str(seed), seed, WITH_CHANGELOGS).table for seed in range(3)]

    assert any(table.changelogs() for table in lives)
    assert all(table.unreached() == set() for table in lives)


def test_expiration_takes_the_files_of_a_branch(calls: Any, warehouse: Path) -> None:
    table = create(calls, warehouse, keyed=True, options={"bucket": "1"})
    table.write([(1, "a", "one")])
    table.tag("start", 1)
    table.create_branch("side", "start")
    table.delete_tag("start")
    for number in range(3):
        table.write([(1, "a", f"v{number}")], compact="fully")
    assert table.read("side") == [(1, "a", "one")]

    table.expire(retain_max=1, retain_min=1)

    with pytest.raises(Py4JJavaError, match="not found"):
        table.read("side")


def test_a_tag_does_not_keep_the_changelog_of_its_snapshot(calls: Any, warehouse: Path) -> None:
    table = create(calls, warehouse, keyed=True, options={"bucket": "1", "changelog-producer": "input"})
    for number in range(3):
        table.write([(1, "a", f"v{number}")])
    table.tag("kept", 2)
    changelog = json.loads(table.snapshot_file(2).read_text())["changelogManifestList"]

    table.expire(retain_max=1, retain_min=1)

    assert json.loads((table.folder / "tag" / "tag-kept").read_text())["changelogManifestList"] == changelog
    assert not (table.folder / "manifest" / changelog).exists()
    assert table.read(scan_tag_name="kept") == [(1, "a", "v1")]


def test_rolling_back_leaves_the_files_of_what_it_takes_back(calls: Any, warehouse: Path) -> None:
    table = create(calls, warehouse, keyed=True, options={"bucket": "1"})
    for number in range(4):
        table.write([(1, "a", f"v{number}")])
    table.tag("early", 1)
    table.tag("late", 3)
    table.expire(retain_max=2, retain_min=2)
    before = set(table.listing())

    table.rollback_to("early")

    assert (table.snapshots(), table.tags()) == ([1], {"early": 1})
    assert before - set(table.listing()) == {"snapshot/snapshot-3", "snapshot/snapshot-4", "tag/tag-late"}
    assert table.unreached()


def test_tags_expire_with_the_files_that_only_they_have(calls: Any, warehouse: Path) -> None:
    table = create(calls, warehouse, keyed=True, options={"bucket": "1"})
    for number in range(4):
        table.write([(1, "a", f"v{number}")], compact="fully")
    table.tag("short", 1, retained=timedelta(milliseconds=1))
    table.tag("long", 2, retained=timedelta(days=1))
    table.tag("forever", 3)
    table.expire(retain_max=1, retain_min=1)

    assert table.expire_tags() == ["short"]
    assert table.expire_tags(older_than=TOMORROW) == ["forever", "long"]
    assert table.unreached() == set()


def test_automatic_tags_are_made_and_expire(calls: Any, warehouse: Path) -> None:
    automatic = {"tag.automatic-creation": "process-time", "tag.creation-period": "hourly", "tag.num-retained-max": "1"}
    table = create(calls, warehouse, options={"bucket": "-1", **automatic, "tag.default-time-retained": "1 d"})
    table.write([(1, "a", "one")])

    table.auto_tags()

    [(_, snapshot)] = table.tags().items()
    assert snapshot == 1


def damaged(table: Table, pattern: str) -> Table:
    """The table without the newest of its files in manifest/ that match."""
    files = sorted((table.folder / "manifest").glob(pattern), key=lambda file: file.stat().st_mtime_ns)
    files[-1].unlink()
    return table


@pytest.mark.parametrize("pattern", ["manifest-[0-9a-f]*-0", "manifest-list-*"])
def test_orphan_removal_takes_live_files_where_a_manifest_is_missing(
    calls: Any, warehouse: Path, tmp_path: Path, pattern: str
) -> None:
    table = create(calls, warehouse, options={"bucket": "1", "bucket-key": "k"})
    for number in range(3):
        table.write([(number, "a", f"v{number}")])
    assert table.unreached() == set()
    broken = damaged(table.copy(tmp_path / "broken"), pattern)
    lost = set(table.listing()) - set(broken.listing())
    data = {name for name in table.listing() if name.startswith("bucket-")}

    broken.remove_orphans(TOMORROW)

    assert data - set(broken.listing()), "all data files are live"
    for name in lost:
        shutil.copy2(table.folder / name, broken.folder / name)
    with pytest.raises(Py4JJavaError, match="not found"):
        broken.read()
