"""A Paimon table of which a file is missing or unreadable: Paimon's own removal takes live files for orphans
(`test_paimon_itself.py`); ours stops, and deletes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.paimon import ours
from artemis_lifecycle_tests.paimon.bundle import Table, create
from artemis_lifecycle_tests.paimon.plants import age, plant


def _halved(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _garbled(file: Path) -> None:
    file.write_bytes(b"\x00" * file.stat().st_size)


DAMAGE: dict[str, Callable[[Path], object]] = {"missing": Path.unlink, "cut": _halved, "garbled": _garbled}
FILES = (
    "manifest/manifest-[0-9a-f]*-0",
    "manifest/manifest-list-*",
    "manifest/index-manifest-*",
    "snapshot/snapshot-*",
    "tag/tag-*",
    "schema/schema-*",
    "branch/branch-side/snapshot/snapshot-*",
)


@pytest.fixture(scope="module")
def whole(calls: Any, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table with an index, a tag and a branch, whose files are all old, and with orphans."""
    options = {"bucket": "-1", "snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2"}
    table = create(calls, tmp_path_factory.mktemp("whole") / "lake", keyed=True, options=options)
    for number in range(4):
        table.write([(key, "a", f"v{number}") for key in range(4)])
        table.place(number + 1, datetime.now(UTC) - timedelta(days=4 - number))
    table.tag("kept", 2)
    table.create_branch("side", "kept")
    table.write([(9, "a", "side")], branch="side")
    age(table)
    return table


@pytest.mark.parametrize(
    ("pattern", "how"),
    # A missing snapshot, tag or schema is one that was deleted.
    [(each, how) for each in FILES for how in DAMAGE if how != "missing" or each.startswith("manifest/")],
)
def test_nothing_is_deleted_from_a_damaged_table(
    whole: Table, make_config: MakeConfig, spark: SparkSession, tmp_path: Path, pattern: str, how: str
) -> None:
    table = whole.copy(tmp_path / "lake")
    newest = max(table.folder.glob(pattern), key=lambda file: (len(file.name), file.name))
    plant(table)
    DAMAGE[how](newest)
    before = table.files()

    with ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle:
        for work in (ours.expire, ours.remove_orphans):
            _require_refusal(lifecycle, table, work)

    assert table.files() == before


def _require_refusal(lifecycle: Lifecycle, table: Table, work: Callable[[Lifecycle, Table], object]) -> None:
    with pytest.raises(UnreadableMetadata) as refused:
        work(lifecycle, table)
    assert refused.value.path is not None
