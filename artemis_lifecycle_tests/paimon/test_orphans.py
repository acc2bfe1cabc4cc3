"""Orphan files of Paimon tables: what Paimon's own removal takes of files that were planted in every folder, and this
project's, on copies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.paimon import ours
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


@pytest.mark.parametrize("seed", [5, 6])
def test_we_remove_what_paimon_removes(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    table, _ = planted(calls, tmp_path / "lake", seed)
    theirs, read = table.copy(tmp_path / "theirs"), table.contents()

    removed = theirs.remove_orphans(A_DAY_AGO)
    with ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle:
        verbs, name = ours.procedures(lifecycle, table), ours.name(table)
        [would] = verbs.remove_orphan_files(name, older_than=A_DAY_AGO, dry_run=True)
        [did] = verbs.remove_orphan_files(name, older_than=A_DAY_AGO)

    hidden = {str(file.relative_to(theirs.folder)) for file in removed if file.name.startswith(".")}
    assert hidden, "Paimon takes hidden files, too; by default, we leave them"
    assert would.deleted_file_count == did.deleted_file_count == len(removed) - len(hidden)
    assert set(table.listing()) == {*theirs.listing(), *hidden}
    assert table.contents() == read
