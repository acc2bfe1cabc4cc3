"""Orphan files of Paimon tables: what Paimon's own removal takes of files that were planted in every folder, and this
project's, on copies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle_tests.paimon.bundle import Table
from artemis_lifecycle_tests.paimon.histories import ALONE, BRANCHED, live
from artemis_lifecycle_tests.paimon.plants import age, plant

A_DAY_AGO = datetime.now(UTC) - timedelta(days=1)


def planted(calls: Any, warehouse: Path, seed: int) -> tuple[Table, set[str]]:
    """A table with orphans of its own past, and planted ones; and these, old and young."""
    history = live(calls, warehouse, seed, BRANCHED if seed % 2 else ALONE)
    history.table.create_branch("empty")
    age(history.table)
    return history.table, plant(history.table)


@pytest.mark.parametrize("seed", [5, 6])
def test_paimon_removes_old_files_from_the_folders_that_it_knows(calls: Any, warehouse: Path, seed: int) -> None:
    table, files = planted(calls, warehouse, seed)
    before, read = set(table.listing()), table.contents()

    removed = {str(file.relative_to(table.folder)) for file in table.remove_orphans(A_DAY_AGO)}

    assert before - set(table.listing()) == removed
    folders = {name.rpartition("/")[0].rpartition("/")[2] for name in removed & files}
    assert {"manifest", "index", "statistics", "snapshot"} < folders and "bucket-0" in folders
    assert not folders & {"schema", "tag", "consumer", "", "elsewhere", "_delta_log", "below"}
    assert table.contents() == read
