"""Finding 14: the catalog was restored from an older backup, and what the later commits wrote looked like orphans. A
metadata file newer than the pointer stops an orphan scan until a person says which of the two is right."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import BadInput, StaleMetadata
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.protection.foreign import (
    append,
    files_below,
    ids,
    place,
    set_pointer,
    sql,
    stray,
    warehouse,
)


def pointers(lifecycle: Lifecycle, table: str) -> list[str]:
    """Where the table's metadata was, oldest first, the current one last."""
    metadata = lifecycle.steps.table_state(table).metadata
    return [entry.metadata_file for entry in metadata.metadata_log] + [metadata.metadata_location]


@pytest.mark.parametrize("back", [1, 3])
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_after_a_restored_backup_no_scan_collects_what_later_commits_wrote(
    at_once: Lifecycle, back: int, version: int
) -> None:
    table = make_table(at_once, "t", 5, properties=f"'format-version'='{version}'")
    lost = stray(place(at_once, table))
    before, newest = files_below(warehouse(at_once, "live")), pointers(at_once, table)[-1]
    set_pointer(at_once, table, pointers(at_once, table)[-1 - back])

    with pytest.raises(StaleMetadata) as stopped:
        at_once.scan_orphans(table)

    said = str(stopped.value)
    assert f"{back} metadata files" in said and "backup" in said and f"artemis settle-metadata {table}" in said
    assert before <= files_below(warehouse(at_once, "live"))
    # A person says that the newest is right.
    set_pointer(at_once, table, newest)
    assert at_once.delete_orphans(at_once.scan_orphans(table)).deleted == 1
    assert not lost.exists() and ids(at_once, table) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("draft", [{"root-manifests": []}, {"location": None}, {"location": "t"}, {"snapshots": 1}])
def test_a_lost_commit_that_cannot_be_read_is_evidence_too(at_once: Lifecycle, draft: dict[str, Any]) -> None:
    table = make_table(at_once, "t", 3, properties="'format-version'='4'")
    *_, before, last = pointers(at_once, table)
    set_pointer(at_once, table, before)
    newest = local(last)
    newest.write_text(json.dumps({**json.loads(newest.read_text()), **draft}))
    with pytest.raises(StaleMetadata, match=newest.name):
        at_once.scan_orphans(table)


def test_a_commit_on_top_of_the_restored_pointer_does_not_hide_the_fork(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 5)
    newest = pointers(at_once, table)[-1]
    set_pointer(at_once, table, pointers(at_once, table)[-4])
    for number in (70, 71, 72, 73):
        append(at_once, table, number)

    with pytest.raises(StaleMetadata, match="metadata files"):
        at_once.scan_orphans(table)

    set_pointer(at_once, table, newest)
    assert ids(at_once, table) == [0, 1, 2, 3, 4]


def test_one_lost_commit_that_a_step_saw_is_found_under_a_new_one(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 4)
    at_once.list_objects(table)
    newest = pointers(at_once, table)[-1]
    set_pointer(at_once, table, pointers(at_once, table)[-2])
    append(at_once, table, 70)

    with pytest.raises(StaleMetadata, match=local(newest).name):
        at_once.scan_orphans(table)

    set_pointer(at_once, table, newest)
    assert ids(at_once, table) == [0, 1, 2, 3]


def age_files(lifecycle: Lifecycle) -> None:
    """No file is young."""
    for path in files_below(warehouse(lifecycle, "live")):
        os.utime(path, (1_700_000_000, 1_700_000_000))


def test_a_fork_that_a_scan_found_is_not_hidden_by_commits_on_the_restored_pointer(at_once: Lifecycle) -> None:
    """The second of two lost commits moved the table where no step saw it: its metadata is not below any location that
    is known, and without it the first one looks like an attempt that lost its swap."""
    table = make_table(at_once, "t", 4)
    sql(at_once, f"ALTER TABLE {{live}}.{table} SET LOCATION 'file://{warehouse(at_once, 'live') / 'moved'}'")
    newest, lost = pointers(at_once, table)[-1], pointers(at_once, table)[-2]
    set_pointer(at_once, table, pointers(at_once, table)[-3])
    age_files(at_once)
    with pytest.raises(StaleMetadata, match=local(lost).name):
        at_once.scan_orphans(table)
    append(at_once, table, 70)
    age_files(at_once)

    with pytest.raises(StaleMetadata, match=local(lost).name):
        at_once.scan_orphans(table)

    set_pointer(at_once, table, newest)
    assert ids(at_once, table) == [0, 1, 2, 3]


def test_an_orphan_that_a_commit_took_up_before_the_restore_stays(at_once: Lifecycle) -> None:
    """The scan was sealed before that commit, and nobody looked in between."""
    table = make_table(at_once, "t", 2)
    file = place(at_once, table) / "data" / "late.parquet"
    file.write_bytes(next(place(at_once, table).rglob("data/*.parquet")).read_bytes())
    os.utime(file, (1_700_000_000, 1_700_000_000))
    scan, before = at_once.scan_orphans(table), pointers(at_once, table)[-1]
    assert scan.summary.orphan_files == 1
    live = at_once.config.catalogs.live.name
    at_once.spark.sql(f"CALL {live}.system.add_files(table => '{table}', source_table => '`parquet`.`{file}`')")
    newest = pointers(at_once, table)[-1]
    set_pointer(at_once, table, before)
    with pytest.raises(StaleMetadata, match=local(newest).name):
        at_once.delete_orphans(scan)
    set_pointer(at_once, table, newest)
    assert file.exists() and at_once.delete_orphans(scan).deleted == 0 and len(ids(at_once, table)) == 3


def test_a_scan_from_before_the_restore_takes_no_file_of_the_later_commits(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 4)
    lost = stray(place(at_once, table))
    scan, all_pointers = at_once.scan_orphans(table), pointers(at_once, table)
    before = files_below(warehouse(at_once, "live"))
    set_pointer(at_once, table, all_pointers[1])
    with pytest.raises(StaleMetadata):
        at_once.delete_orphans(scan)
    assert before <= files_below(warehouse(at_once, "live"))
    set_pointer(at_once, table, all_pointers[-1])
    at_once.delete_orphans(scan)
    assert before - files_below(warehouse(at_once, "live")) == {str(lost)}
    assert ids(at_once, table) == [0, 1, 2, 3]


def test_the_later_commits_are_found_in_a_metadata_folder_elsewhere(at_once: Lifecycle) -> None:
    folder = warehouse(at_once, "live") / "metadata-of-t"
    table = make_table(at_once, "t", 4, properties=f"'write.metadata.path'='file://{folder}'")
    newest = pointers(at_once, table)[-1]
    assert local(newest).parent == folder
    set_pointer(at_once, table, pointers(at_once, table)[-3])
    with pytest.raises(StaleMetadata, match="2 metadata files"):
        at_once.scan_orphans(table)


def test_the_later_commits_are_found_where_the_table_had_moved_to_and_back(at_once: Lifecycle) -> None:
    """The pointer names one location, the lost commits are at another, beside older history."""
    table = make_table(at_once, "t", 2)
    first, second = place(at_once, table), warehouse(at_once, "live") / "moved"
    at_once.list_objects(table)
    sql(at_once, f"ALTER TABLE {{live}}.{table} SET LOCATION 'file://{second}'")
    append(at_once, table, 2)
    then = pointers(at_once, table)[-1]
    at_once.list_objects(table)
    sql(at_once, f"ALTER TABLE {{live}}.{table} SET LOCATION 'file://{first}'")
    append(at_once, table, 3)
    newest = pointers(at_once, table)[-1]
    set_pointer(at_once, table, then)

    with pytest.raises(StaleMetadata, match="2 metadata files"):
        at_once.scan_orphans(table)

    set_pointer(at_once, table, newest)
    assert ids(at_once, table) == [0, 1, 2, 3]


def leftover(lifecycle: Lifecycle, table: str) -> Path:
    """The metadata file of a writer that was killed before its swap."""
    current = local(pointers(lifecycle, table)[-1])
    document = json.loads(current.read_text())
    document["metadata-log"].append({"timestamp-ms": document["last-updated-ms"], "metadata-file": f"file://{current}"})
    document["last-updated-ms"] += 1
    left = current.with_name(f"{int(current.name.split('-')[0]) + 1:05d}-{uuid.uuid4()}.metadata.json")
    left.write_text(json.dumps(document))
    return left


def test_a_crashed_writers_leftover_is_settled_by_a_person_and_then_collected(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 2)
    left, lost = leftover(at_once, table), stray(place(at_once, table))
    with pytest.raises(StaleMetadata, match=left.name):
        at_once.scan_orphans(table)
    for who, why in (("", "crashed"), ("ann", " ")):
        with pytest.raises(BadInput):
            at_once.settle_metadata(table, who=who, why=why)
    with pytest.raises(StaleMetadata):
        at_once.scan_orphans(table)

    assert [local(path) for path in at_once.settle_metadata(table, who="ann", why="the writer crashed")] == [left]
    assert at_once.settle_metadata(table, who="ann", why="again") == ()

    scan = at_once.scan_orphans(table)
    assert {local(row["path"]) for row in scan.files().collect()} == {left, lost}
    assert at_once.delete_orphans(scan).deleted == 2
    assert ids(at_once, table) == [0, 1]


def test_what_is_settled_settles_nothing_that_comes_later(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 3)
    leftover(at_once, table)
    at_once.settle_metadata(table, who="ann", why="the writer crashed")
    newest = pointers(at_once, table)[-1]
    set_pointer(at_once, table, pointers(at_once, table)[-2])
    with pytest.raises(StaleMetadata, match=local(newest).name):
        at_once.scan_orphans(table)


def test_another_metadata_file_at_a_settled_path_is_not_settled(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 2)
    left = leftover(at_once, table)
    at_once.settle_metadata(table, who="ann", why="the writer crashed")
    left.write_text(left.read_text().replace("{", "{ ", 1))
    with pytest.raises(StaleMetadata, match=left.name):
        at_once.scan_orphans(table)


def test_a_table_with_nothing_newer_has_nothing_to_settle(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 2)
    assert at_once.settle_metadata(table, who="ann", why="to be sure") == ()
    assert at_once.scan_orphans(table).summary.orphan_files == 0
