"""What an unfinished scan's deletion has moved into quarantine comes back: a person may close a scan as a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import FAILED, Removals
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import Killed, lapse
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import append, files_below, make_all_old, set_pointer, stray, warehouse
from artemis_lifecycle_tests.protection.test_finding_10 import create, drop


def dies_at(point: str, turn: int) -> Callable[[str], None]:
    """Dies when it comes to a point for the `turn`-th time."""
    left = [turn]

    def callback(reached: str) -> None:
        left[0] -= reached == point
        if reached == point and not left[0]:
            raise Killed(point)

    return callback


def aside(make_config: MakeConfig) -> Any:
    slowly = {"grace": "0s", "mode": "quarantine", "requests_per_second": 2}
    policy = {**WITHOUT_COLD, "deletion": slowly, "dropped": {"keep": "0s"}}
    return make_config(defaults=policy, tables={"db.*": {}})


def tried(*commands: Callable[[], object]) -> list[str]:
    said = []
    for command in commands:
        try:
            command()
            said.append("done")
        except LifecycleError as error:
            said.append(f"{type(error).__name__}: {error.what} / {error.hint}")
    return said


@pytest.mark.parametrize("pieces", [99, 2], ids=["ended", "killed"])
def test_what_a_killed_deletion_of_orphans_moved_comes_back(
    make_config: MakeConfig, spark: SparkSession, pieces: int
) -> None:
    """The person who settled the newer metadata was wrong, sees it during the deletion, and takes the commit back."""
    with open_lifecycle(aside(make_config), spark=spark) as lifecycle:
        create(lifecycle, "db.t")
        before = lifecycle.get_current("db.t").metadata_location
        append(lifecycle, "db.t", 2)
        files = files_below(warehouse(lifecycle, "live"))
        newest = lifecycle.get_current("db.t").metadata_location
        set_pointer(lifecycle, "db.t", before)
        make_all_old(warehouse(lifecycle, "live"))
        lifecycle.settle_metadata("db.t", who="ada", why="the load was wrong")
        scan = lifecycle.scan_orphans("db.t")
        if pieces == 99:
            lifecycle.delete_orphans(scan)
        else:
            with pytest.raises(Killed), crash_points.installed(dies_at("deletion.write_outcomes:after", pieces)):
                lifecycle.delete_orphans(scan)
            lapse(lifecycle, "leases")
            # It was right after all.
            set_pointer(lifecycle, "db.t", newest, is_readable=False)
        said = tried(
            lambda: lifecycle.undelete(scan, who="ada", why="a mistake"),
            lambda: lifecycle.delete_orphans(scan),
            lambda: lifecycle.close_plan(scan.scan_id, who="ada", why="a mistake"),
            lambda: lifecycle.undelete(scan, who="ada", why="a mistake"),
        )
        assert sorted(files - files_below(warehouse(lifecycle, "live"))) == [], said


@pytest.mark.parametrize("pieces", [99, 1], ids=["ended", "killed"])
def test_what_a_killed_deletion_of_a_dropped_table_moved_comes_back(
    make_config: MakeConfig, spark: SparkSession, pieces: int
) -> None:
    """Somebody registers the table again with an engine while its deletion is interrupted: its metadata file is still
    there, because it goes last."""
    with open_lifecycle(aside(make_config), spark=spark) as lifecycle:
        create(lifecycle, "db.t")
        pointer = lifecycle.get_current("db.t").metadata_location
        files = files_below(warehouse(lifecycle, "live"))
        uuid = drop(lifecycle, "db.t")
        scan = lifecycle.scan_dropped(uuid)
        lifecycle.approve(scan, who="ada", why="nobody needs it")
        if pieces == 99:
            lifecycle.delete_dropped(scan)
        else:
            with pytest.raises(Killed), crash_points.installed(dies_at("deletion.write_outcomes:after", pieces)):
                lifecycle.delete_dropped(scan)
            lapse(lifecycle, "leases")
            name = lifecycle.config.catalogs.live.name
            spark.sql(f"CALL {name}.system.register_table(table => 'db.t', metadata_file => '{pointer}')")
        said = tried(
            lambda: lifecycle.undelete(scan, who="ada", why="a mistake"),
            *(() if pieces == 99 else (lambda: lifecycle.delete_orphans(scan),)),
            *(() if pieces == 99 else (lambda: lifecycle.undrop(uuid, who="ada", why="a mistake"),)),
            *(() if pieces == 99 else (lambda: lifecycle.close_plan(scan.scan_id, who="ada", why="a mistake"),)),
            *(() if pieces == 99 else (lambda: lifecycle.undelete(scan, who="ada", why="a mistake"),)),
        )
        assert sorted(files - files_below(warehouse(lifecycle, "live"))) == [], said


def test_one_file_that_cannot_be_deleted_keeps_the_others_in_quarantine(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a store with an immutability policy answers, each night."""
    with open_lifecycle(aside(make_config), spark=spark) as lifecycle:
        place = create(lifecycle, "db.t")
        stuck, needed = stray(place, "data/locked.parquet"), stray(place, "data/needed.parquet")
        real = Stores.remove

        def remove(stores: Stores, paths: pa.Array, **how: Any) -> Removals:
            removed = real(stores, paths.filter(pc.invert(pc.match_substring(paths, "locked"))), **how)
            locked = pc.match_substring(paths, "locked").to_numpy(zero_copy_only=False)
            found = Removals(np.full(len(paths), FAILED, np.int8))
            found.outcomes[~locked] = removed.outcomes
            found.errors.update(dict.fromkeys(np.flatnonzero(locked).tolist(), "BlobImmutableDueToPolicy"))
            return found

        monkeypatch.setattr(Stores, "remove", remove)
        scan = lifecycle.scan_orphans("db.t")
        assert lifecycle.delete_orphans(scan).failed == 1
        assert stuck.exists() and not needed.exists()
        said = tried(
            lambda: lifecycle.undelete(scan, who="ada", why="a mistake"),
            lambda: lifecycle.delete_orphans(scan),
            lambda: lifecycle.close_plan(scan.scan_id, who="ada", why="a mistake"),
            lambda: lifecycle.undelete(scan, who="ada", why="a mistake"),
        )
        assert needed.exists(), said
