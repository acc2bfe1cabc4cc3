"""What this project reads of Paimon tables names just the files that Paimon's own orphan removal finds reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle.formats.paimon.documents import Document
from artemis_lifecycle.formats.paimon.folders import Folders
from artemis_lifecycle.formats.paimon.manifests import read_index_manifest, read_list, read_manifest
from artemis_lifecycle.formats.paimon.table import read_table
from artemis_lifecycle.storage.location import DEFAULT_RULES
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.paimon.bundle import Table, create
from artemis_lifecycle_tests.paimon.histories import ALONE, BRANCHED, live
from artemis_lifecycle_tests.paimon.python_tables import pypaimon

_DOCUMENTS = ("snapshot", "schema", "tag", "branch", "consumer", "changelog")


def reached(table: Table) -> set[str]:
    """The files that the table's snapshots and tags name, in all branches, by relative path."""
    read = read_table(Stores(), table.name, f"file://{table.folder}")
    paths = {path for each in read.documents for path in _named(each, read.folders(each.branch))}
    return {path.removeprefix(f"file://{table.folder}/") for path in paths}


def _named(document: Document, folders: Folders) -> set[str]:
    stores, paths = Stores(), set()
    lists = [(document.base, document.base_size), (document.delta, document.delta_size)]
    # A tag keeps no changelog: it goes with the snapshot.
    if document.changelog is not None and document.role != "tag":
        lists.append((document.changelog, document.changelog_size))
    for name, size in lists:
        manifests = read_list(stores, folders, name, size)
        paths.add(manifests.path)
        for manifest in manifests.manifests:
            paths |= {manifest.path, *read_manifest(stores, folders, manifest, DEFAULT_RULES).paths.to_pylist()}
    if document.index_manifest is not None:
        index = read_index_manifest(stores, folders, document.index_manifest)
        paths |= {index.path, *(file.path for file in index.files)}
    if document.statistics is not None:
        paths.add(folders.in_statistics(document.statistics))
    return paths


def require_all_read(table: Table, said: str = "") -> None:
    listed = {name for name in table.listing() if name.partition("/")[0] not in _DOCUMENTS}
    assert reached(table) & listed == listed - table.unreached(), said


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("acts", [ALONE, BRANCHED], ids=["alone", "branched"])
def test_files_of_random_lives(calls: Any, warehouse: Path, seed: int, acts: Any) -> None:
    history = live(calls, warehouse, 100 + seed, acts)
    require_all_read(history.table, "\n".join(history.said))


_VALUES = {
    "d DATE": ("2026-11-20", "1969-12-31", "0001-01-01", "9999-12-31"),
    "t0 TIMESTAMP(0)": ("2026-11-20 10:00:01", "1969-12-31 23:59:59", "2026-11-20 00:00:00", "2026-11-20 10:00:00"),
    "t3 TIMESTAMP(3)": ("2026-11-20 10:00:00.120", "1969-12-31 23:59:59.999", "2026-11-20 10:00:01", None),
    "t6 TIMESTAMP(6)": ("2026-11-20 10:00:00.123456", "1969-12-31 23:59:59.000001", "2026-11-20 10:00:01.1", None),
    "n DECIMAL(10, 2)": ("-12.50", "0", "99999999.99", "0.01"),
    "m DECIMAL(30, 5)": ("-123456789012345678901.12345", "0", "1", "0.00001"),
    "b BOOLEAN": ("true", "false", None, "true"),
    "s STRING": ("a=b/c d%ü", "   ", "", "x" * 40 + "\\{}[]^'#\"*:?"),
    "c CHAR(3)": ("abc", "ab", "ü€a", None),
    "y TINYINT": ("-128", "127", "0", None),
    "h SMALLINT": ("-32768", "32767", "0", None),
    "i INT": ("-2147483648", "2147483647", "0", None),
    "l BIGINT": ("-9223372036854775808", "9223372036854775807", "0", None),
}


@pytest.mark.parametrize("legacy", ["true", "false"])
def test_folders_of_partitions_of_all_types(calls: Any, warehouse: Path, legacy: str) -> None:
    columns = [("k", "BIGINT"), *((name, kind) for name, _, kind in (key.partition(" ") for key in _VALUES))]
    options = {"bucket": "-1", "partition.legacy-name": legacy}
    keys = [name for name, _ in columns[1:]]
    table = create(calls, warehouse, columns=columns, partitioned=keys, options=options)
    for number, values in enumerate(zip(*_VALUES.values(), strict=True)):
        table.write([(number, *values)])

    require_all_read(table)
    assert len({name.rpartition("/")[0] for name in table.listing() if "bucket-" in name}) == 4


def test_files_of_pypaimon(calls: Any, warehouse: Path) -> None:
    at = [str(warehouse), "db.t"]
    pypaimon(
        ("create", at, {"keyed": True, "options": {"bucket": "-1"}}),
        ("write", [*at, [[1, "a", "one"], [2, "b", None]]], {}),
        ("tag", [*at, "first", 1], {"retained": "1d"}),
        ("create_branch", [*at, "side", "first"], {}),
        ("write", [*at, [[3, "a", "three"]]], {}),
        ("write", [*at, [[5, "s", "side"]]], {"branch": "side"}),
        ("write", [*at, [[6, "a", "new"]]], {"overwrite": True}),
    )

    require_all_read(Table(calls, warehouse / "db.db" / "t"))
