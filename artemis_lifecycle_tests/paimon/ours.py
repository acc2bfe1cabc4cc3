"""This project's walk over Paimon tables, as the tests here ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.formats.paimon.procedures import PaimonProcedures
from artemis_lifecycle_tests.paimon.bundle import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from artemis_lifecycle_tests.conftest import MakeConfig

CATALOG = "lake"


def configured(make_config: MakeConfig, warehouse: Path, **sections: Any) -> LifecycleConfig:
    """A configuration whose catalog `lake` is that warehouse, and that deletes without a grace."""
    others = {CATALOG: {"type": "paimon", "warehouse": f"file://{warehouse}"}}
    defaults = {"deletion": {"grace": "0s"}, "orphans": {"max_share": 1}, **sections.pop("defaults", {})}
    return make_config(catalogs={"others": others}, defaults=defaults, **sections)


@contextmanager
def opened(config: LifecycleConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    with Lifecycle.open(config, spark=spark, owner="a worker") as lifecycle:
        yield lifecycle


def name(table: Table) -> str:
    return f"{CATALOG}:{table.name}"


def expire(
    lifecycle: Lifecycle, table: Table, *, now: datetime | None = None, older_than: datetime | None = None
) -> DeletionReport:
    """Plan, commit and delete under the table's own options."""
    plan = lifecycle.plan_expiration(name(table), now=now, older_than=older_than)
    lifecycle.commit_expiration(plan)
    return lifecycle.delete_files(plan)


def procedures(lifecycle: Lifecycle, table: Table) -> PaimonProcedures:
    return lifecycle.paimon(name(table))


def remove_orphans(lifecycle: Lifecycle, table: Table, older_than: datetime | None = None) -> DeletionReport:
    return lifecycle.delete_orphans(lifecycle.scan_orphans(name(table), older_than=older_than))
