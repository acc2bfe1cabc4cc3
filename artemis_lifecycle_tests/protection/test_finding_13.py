"""Two tiers in one place: the roots are compared by what they are, and not only by how they are spelled."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import ConfigError, HandoffFailed
from artemis_lifecycle.storage import roots
from artemis_lifecycle.storage.location import DEFAULT_RULES, LocationRules
from artemis_lifecycle.storage.roots import require_apart, same_file
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.policies import AT_ONCE


def folder_of(config: LifecycleConfig, tier: str) -> Path:
    return Path(str(getattr(config.catalogs, tier).warehouse).removeprefix("file://"))


def handed_a_plan(lifecycle: Lifecycle) -> tuple[str, list[int]]:
    """A table with an expired snapshot, planned; the plan's id and the snapshots."""
    live = lifecycle.config.catalogs.live.name
    core_tables.sql(lifecycle.spark, f"CREATE NAMESPACE {live}.db")
    core_tables.sql(lifecycle.spark, f"CREATE TABLE {live}.db.t (id int) USING iceberg")
    core_tables.sql(lifecycle.spark, f"INSERT INTO {live}.db.t VALUES (1)")
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {live}.db.t VALUES (2)")
    plan = lifecycle.plan_expiration("db.t")
    assert len(plan.expired_snapshots) == 1
    return plan.plan_id, [each.snapshot_id for each in lifecycle.snapshot_history("db.t").snapshots]


def files_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("cold", ["file:///w/x/../live", "/w/live/./cold", "file:/w//x/../live/cold", "/w/y/.."])
def test_dots_do_not_hide_that_two_roots_are_nested(cold: str) -> None:
    with pytest.raises(ValidationError, match="equal or nested"):
        LifecycleConfig.model_validate({"catalogs": {"live": {"warehouse": "/w/live"}, "cold": {"warehouse": cold}}})


def test_dots_in_a_key_count_as_if_some_reader_resolved_them() -> None:
    with pytest.raises(ValidationError, match="equal or nested"):
        LifecycleConfig.model_validate(
            {"catalogs": {"live": {"warehouse": "s3://b/w"}, "cold": {"warehouse": "s3a://b/x/../w/cold"}}}
        )


def test_equal_buckets_are_one_place() -> None:
    rules = LocationRules(equal_authorities={"replica": "primary"})
    require_apart({"a": "s3://primary/w", "b": "s3://replica/w"}, DEFAULT_RULES)
    with pytest.raises(ConfigError, match="equal or nested"):
        require_apart({"a": "s3://primary/w", "b": "s3a://replica/w/cold"}, rules)
    assert same_file("s3://primary/w/f", "s3a://replica/w/f", rules)
    assert not same_file("s3://primary/w/f", "s3a://replica/w/f", DEFAULT_RULES)


@pytest.mark.parametrize("below", ["", "cold", "not/made/yet"])
def test_a_configuration_whose_cold_warehouse_links_to_the_live_one_is_not_opened(
    make_config: MakeConfig, spark: SparkSession, below: str
) -> None:
    config = make_config()
    live, cold = folder_of(config, "live"), folder_of(config, "cold")
    live.mkdir(parents=True)
    cold.symlink_to(live / below)

    with pytest.raises(ConfigError, match="through a link or a mount") as refused:
        Lifecycle.open(config, spark=spark)

    assert "catalogs.live.warehouse and catalogs.cold.warehouse" in refused.value.what
    cold.unlink()
    Lifecycle.open(config, spark=spark).close()


def test_a_link_above_the_roots_is_allowed(make_config: MakeConfig, spark: SparkSession) -> None:
    config = make_config()
    home = folder_of(config, "live").parent
    home.rename(home.parent / "real")
    home.symlink_to(home.parent / "real")
    Lifecycle.open(config, spark=spark).close()


def test_a_bind_mount_of_the_live_warehouse_is_the_live_warehouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "mounted" / "cold").mkdir(parents=True)
    named = {"live": f"{tmp_path}/live", "cold": f"{tmp_path}/mounted/cold"}
    require_apart(named, DEFAULT_RULES)
    # What the kernel would say had a folder inside the live warehouse been mounted there too.
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:7 / / rw - o o rw\n2 1 0:7 {tmp_path}/live/inner {tmp_path}/mounted rw - o o rw\n")
    monkeypatch.setattr(roots, "_MOUNTS", str(mounts))
    with pytest.raises(ConfigError, match="through a link or a mount"):
        require_apart(named, DEFAULT_RULES)


def test_a_link_that_appears_later_stops_the_handoff_and_the_deletion(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    config = make_config(defaults=AT_ONCE)
    live, cold = folder_of(config, "live"), folder_of(config, "cold")
    with open_lifecycle(config, spark=spark) as lifecycle:
        plan, _ = handed_a_plan(lifecycle)
        before = files_below(live)
        cold.symlink_to(live)
        with pytest.raises(ConfigError, match="equal or nested"):
            lifecycle.hand_off(plan)
        assert files_below(live) == before

        cold.unlink()
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        before = files_below(live)
        cold.rename(cold.with_name("aside"))
        cold.symlink_to(live)
        with pytest.raises(ConfigError, match="equal or nested"):
            lifecycle.delete_files(plan)
        assert files_below(live) == before

        cold.unlink()
        cold.with_name("aside").rename(cold)
        assert lifecycle.delete_files(plan).deleted > 0


def test_a_file_is_not_copied_onto_itself(make_config: MakeConfig, spark: SparkSession) -> None:
    config = make_config(defaults=AT_ONCE)
    live, cold = folder_of(config, "live"), folder_of(config, "cold")
    with open_lifecycle(config, spark=spark) as lifecycle:
        plan, ids = handed_a_plan(lifecycle)
        before = files_below(live)
        cold.mkdir(exist_ok=True)
        # The roots are apart; only what is below them is one folder.
        (cold / "db").symlink_to(live / "db")
        with pytest.raises(HandoffFailed, match="the file itself"):
            lifecycle.hand_off(plan)
        # All that is new says whose the cold place is.
        assert files_below(live) - before == {str(live / "db" / "t" / "_outside" / "table.json")}
        assert before <= files_below(live)
        assert lifecycle.plans("db.t")[0].status == "open"

        (cold / "db").unlink()
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        lifecycle.delete_files(plan)
        assert lifecycle.read("db.t", snapshot_id=ids[0]).collect()[0]["id"] == 1
