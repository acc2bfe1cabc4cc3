"""Answers of the index, put in terms of the model: files instead of paths."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings

from artemis_lifecycle.metadata.types import CONTENT_KINDS, MANIFEST, MANIFEST_LIST, PARTITION_STATISTICS, STATISTICS
from artemis_lifecycle.reachability.index.files import deletable, reachable
from artemis_lifecycle.reachability.index.lookups import held_files
from artemis_lifecycle.storage.location import normalize
from artemis_lifecycle_tests.reachability import oracle
from artemis_lifecycle_tests.reachability.metadata_tables import File, MetadataTable


def examples(count: int) -> settings:
    """As `retention.histories.examples`, and a failure prints what repeats it elsewhere."""
    return settings(
        max_examples=count * int(os.environ.get("ARTEMIS_SOAK", "1")),
        deadline=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.function_scoped_fixture,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )


class Row(NamedTuple):
    path: str
    kind: str
    size_in_bytes: int
    last: str
    """The reason of a deletable file; the location of a reachable one."""


def mentions(table: MetadataTable) -> dict[str, File]:
    """Every path that stands in the table's metadata, with the file that it means."""
    found = {each.path: each.file for each in table.statistics}
    for held in table.held.values():
        if held.list_file is not None and held.list_path is not None:
            found[held.list_path] = held.list_file
        for manifest, path in held.manifests:
            found[path] = manifest.file
            for entry, file in manifest.entries:
                found[entry.path] = file
    return found


def by_file(answer: Any, known: dict[str, File]) -> dict[File, Row]:
    """The rows of an answer (a pyarrow.Table), by the file that each means."""
    columns = answer.column_names
    assert columns[:3] == ["path", "kind", "size_in_bytes"]
    found: dict[File, Row] = {}
    for row in zip(*(answer.column(name).to_pylist() for name in columns), strict=True):
        file = known[row[0]]
        assert file not in found, f"{file} has two rows: {found[file].path!r} and {row[0]!r}"
        found[file] = Row(*row)
    return found


def check_deletable(table: MetadataTable, view: Any, expired: Collection[int], known: dict[str, File]) -> None:
    """The view names exactly the files that the oracle names, each with its kind, its size and why."""
    found = by_file(deletable(view, tuple(expired)), known)
    expected = oracle.deletable(table, set(expired))
    assert set(found) - set(expected) == set(), "would be deleted, and must stay"
    assert set(expected) - set(found) == set(), "would stay, and is nobody's"
    _check_rows(table, found, expected)
    last: dict[File, int] = {}
    for snapshot_id in table.ids():
        if snapshot_id in expired:
            last |= dict.fromkeys(oracle.reached_by(table, snapshot_id), snapshot_id)
    for file, row in found.items():
        assert str(last[file]) in row.last, f"{file} was last reached by {last[file]}; the reason is {row.last!r}"


def check_reachable(table: MetadataTable, view: Any, ids: Collection[int], known: dict[str, File]) -> None:
    """The same for what snapshots reach."""
    found = by_file(reachable(view, tuple(ids)), known)
    expected = oracle.reachable(table, ids)
    assert set(found) == set(expected)
    _check_rows(table, found, expected)
    for file, row in found.items():
        assert row.last == normalize(file.path(), table.rules)


def check_held(table: MetadataTable, view: Any, choices: Sequence[Collection[int]]) -> None:
    """The counts of what each choice of snapshots holds."""
    for ids, held in zip(choices, held_files(view, [tuple(ids) for ids in choices]), strict=True):
        reached = oracle.reachable(table, ids)
        metadata = [file for file, kinds in reached.items() if kinds & {MANIFEST, MANIFEST_LIST}]
        content = [
            file for file, kinds in reached.items() if kinds & (CONTENT_KINDS | {STATISTICS, PARTITION_STATISTICS})
        ]
        assert (held.files, held.metadata_files) == (len(content) + len(metadata), len(metadata))
        if all(each.list_file is not None for each in table.held.values()):
            assert held.metadata_size_in_bytes == sum(file.size for file in metadata)
            assert held.size_in_bytes == sum(file.size for file in [*metadata, *content])


def _check_rows(table: MetadataTable, found: dict[File, Row], expected: oracle.Reached) -> None:
    inline = {m.file for held in table.held.values() if held.list_file is None for m, _ in held.manifests}
    for file, row in found.items():
        assert row.kind in expected[file], f"{file} is {expected[file]} and not {row.kind}"
        # Nothing records how long an inline manifest is.
        sizes = {file.size, 0} if file in inline else {file.size}
        assert row.size_in_bytes in sizes, f"{file} has {file.size} bytes and not {row.size_in_bytes}"


def same(one: Any, other: Any, ids: Collection[int], expired: Collection[int]) -> None:
    """Two views give the same answers, row by row; the order of rows is nobody's promise."""
    assert _rows(deletable(one, tuple(expired))) == _rows(deletable(other, tuple(expired)))
    assert _rows(reachable(one, tuple(ids))) == _rows(reachable(other, tuple(ids)))


def _rows(answer: Any) -> list[tuple[Any, ...]]:
    return sorted(zip(*(answer.column(name).to_pylist() for name in answer.column_names), strict=True))
