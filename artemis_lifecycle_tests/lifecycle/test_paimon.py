"""Paimon's procedures on real tables: the same snapshots and files as Paimon's own leave on a copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.lifecycle.paimon_procedures import PaimonProcedures
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.paimon.bundle import Table, create, paimon

NAME = "lake:db.t"
RECEIPTS = "metadata/artemis-receipts/"


@pytest.fixture(scope="module")
def calls(spark: SparkSession) -> Any:
    return paimon(spark)


@pytest.fixture
def opened(make_config: MakeConfig, spark: SparkSession, tmp_path: Path) -> Iterator[Lifecycle]:
    config = make_config(
        catalogs={
            "others": {"lake": {"type": "paimon", "warehouse": str(tmp_path / "lake"), "expire": {"limit": "coded"}}}
        }
    )
    with Lifecycle.open(config, spark=spark) as lifecycle:
        yield lifecycle


@pytest.fixture
def procedures(opened: Lifecycle) -> PaimonProcedures:
    return opened.paimon(NAME)


def left(table: Table) -> list[str]:
    return [path for path in table.listing() if not path.startswith(RECEIPTS) and not path.endswith(".crc")]


def same(ours: Table, theirs: Table) -> None:
    assert ours.snapshots() == theirs.snapshots()
    assert ours.tags() == theirs.tags()
    assert left(ours) == left(theirs)


def lively(calls: Any, warehouse: Path, **kwargs: Any) -> Table:
    table = create(
        calls, warehouse, keyed=True, partitioned=True, options={"write-only": "true", "bucket": "1", **kwargs}
    )
    for number in range(6):
        table.write([(number, "a", "x"), (number + 1, "b", "y")], compact="fully" if number % 3 == 2 else "never")
    return table


def test_expires_what_paimon_expires(calls: Any, procedures: PaimonProcedures, tmp_path: Path) -> None:
    table = lively(calls, tmp_path / "lake")
    table.tag("kept", 2)
    theirs = table.copy(tmp_path / "copy")
    before = table.contents()
    done = procedures.expire_snapshots(NAME, retain_max=2, retain_min=1)
    assert done.deleted_snapshots_count == theirs.expire(retain_max=2, retain_min=1) > 0
    same(table, theirs)
    after = table.contents()
    assert after == {name: before[name] for name in after}
