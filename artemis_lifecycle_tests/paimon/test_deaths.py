"""Death before and after each durable write of the walk over a Paimon table, then the same command again: the same
final state as without a death. `make nightly` takes all deaths, `make test` a sample."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import make_url

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deaths import Killed
from artemis_lifecycle_tests.durable import When, Writes
from artemis_lifecycle_tests.end_report import add_row
from artemis_lifecycle_tests.integration.crash_world import Disk, state_of, without_inodes
from artemis_lifecycle_tests.paimon import ours
from artemis_lifecycle_tests.paimon.bundle import Table, create
from artemis_lifecycle_tests.paimon.plants import age, plant

# Read before the fixture of the tests' conftest takes such variables away.
WHOLE = "ARTEMIS_SOAK" in os.environ
TWO_DAYS_AGO = datetime.now(UTC) - timedelta(days=2)
SEED = int(os.environ["ARTEMIS_SEED"])
SAMPLE = 1
"""Deaths of each step in the short form."""


def _plan(lifecycle: Lifecycle, table: Table) -> str:
    return lifecycle.plans(ours.name(table))[0].plan_id


def _scan(lifecycle: Lifecycle, table: Table) -> str:
    uuid = lifecycle.snapshot_history(ours.name(table)).table_uuid
    return lifecycle.operations.scans.of_table(uuid)[0].scan_id


STEPS: dict[str, Callable[[Lifecycle, Table], object]] = {
    "plan": lambda lifecycle, table: lifecycle.plan_expiration(ours.name(table)),
    "commit": lambda lifecycle, table: lifecycle.commit_expiration(_plan(lifecycle, table)),
    "deletion": lambda lifecycle, table: lifecycle.delete_files(_plan(lifecycle, table)),
    "orphan scan": lambda lifecycle, table: lifecycle.scan_orphans(ours.name(table), older_than=TWO_DAYS_AGO),
    "orphan deletion": lambda lifecycle, table: lifecycle.delete_orphans(_scan(lifecycle, table)),
}


def lived(calls: Any, warehouse: Path) -> Table:
    options = {"bucket": "1", "changelog-producer": "input", "snapshot.num-retained.max": "2"}
    table = create(calls, warehouse, keyed=True, options={**options, "snapshot.num-retained.min": "1"})
    for number in range(4):
        table.write([(number % 2, "a", f"v{number}")], compact="fully")
    for number in table.snapshots():
        table.place(number, datetime.now(UTC) - timedelta(days=9 - number))
    table.tag("kept", 3)
    plant(table)
    age(table)
    return table


def test_a_death_at_any_write_ends_as_an_undisturbed_walk(
    calls: Any,
    make_config: MakeConfig,
    spark: SparkSession,
    postgres_uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_inodes(monkeypatch)
    config = make_config()
    assert config.home is not None
    warehouse = Path(config.home) / "lake"
    config = ours.configured(make_config, warehouse)
    table = lived(calls, warehouse)
    with ours.opened(config, spark) as lifecycle:
        lifecycle.prepare()  # Makes the tables of both schemas.
        assert lifecycle.tables() == [ours.name(table)] and lifecycle.plans(ours.name(table)) == []
    libpq = make_url(postgres_uri).set(drivername="postgresql").render_as_string(hide_password=False)
    disk = Disk(Path(config.home).parent, libpq, tmp_path.parent / f"{tmp_path.name}-saved")
    dice = random.Random(SEED)
    for name, step in STEPS.items():
        before = disk.save()
        with Writes(observe=disk.observe).watched() as seen, ours.opened(config, spark) as lifecycle:
            step(lifecycle, table)
        assert seen.stray == [], f"{name}: changes that no write explains"
        wanted = _state(table, disk, config)
        deaths: list[tuple[int, When]] = [(at, when) for at in range(len(seen.made)) for when in ("before", "after")]
        chosen = deaths if WHOLE else dice.sample(deaths, min(SAMPLE, len(deaths)))
        for death in chosen:
            disk.put_back(before)
            with suppress(Killed), Writes(die=death).watched(), ours.opened(config, spark) as lifecycle:
                step(lifecycle, table)
            disk.execute("UPDATE lifecycle.leases SET expires_at = clock_timestamp() - interval '1 s'")
            assert table.read(scan_tag_name="kept"), f"{name}, death {death} at {seen.made[death[0]]}"
            with ours.opened(config, spark) as lifecycle:
                step(lifecycle, table)
            assert _state(table, disk, config) == wanted, f"{name}, death {death} at {seen.made[death[0]]}"
        add_row(
            "Deaths in a Paimon table's walk",
            ("step", "writes", "deaths"),
            (name, f"{len(seen.made)}", f"{len(chosen)}"),
        )
    # By default, hidden files stay.
    assert all(file.name.startswith(".") for file in table.remove_orphans(TWO_DAYS_AGO, dry_run=True))


def _state(table: Table, disk: Disk, config: LifecycleConfig) -> dict[str, Any]:
    return state_of(disk, config, ()) | {"files": table.listing(), "rows": table.contents()}
