"""A metadata file that is gone, seen from Dagster: each asset fails once, with the same words, until it is back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dagster import ExecuteInProcessResult

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.defs.progress import _WAITS_FOR
from artemis_lifecycle.defs.tags import WAITS_FOR_TAG
from artemis_lifecycle_tests.defs.conftest import Project, no_checksum_files
from artemis_lifecycle_tests.defs.test_walk import failures
from artemis_lifecycle_tests.integration.test_lost_metadata import PROMISE, TABLE, Stage, build, damaged
from artemis_lifecycle_tests.policies import AT_ONCE


@pytest.mark.nightly
def test_each_asset_fails_once_with_the_same_words(make_project: Callable[..., Project]) -> None:
    project = make_project(tables={"db.*": AT_ONCE})
    with no_checksum_files(project.spark):
        with Lifecycle.open(project.config, spark=project.spark) as lifecycle:
            build(lifecycle)
            path = Stage(lifecycle, lifecycle.plan_expiration(TABLE)).victim("current manifest")
        project.instance.add_dynamic_partitions("table", [TABLE])

        with damaged(path, "lost"):
            results = [project.run(job, TABLE, dry_run=dry_run) for job, dry_run in _JOBS]

        reported = {asset: words for result in results for asset, words in failures(result).items()}
        assert set(reported) == {
            "reachable_set",
            "cold_tier_snapshots",
            "orphan_scan",
            "table_health",
            "compacted_manifests",
            "compacted_data_files",
        }
        # The plan comes after the reachable set, and never begins.
        assert not any(result.asset_materializations_for_node("expiration_plan") for result in results[:2])
        assert len(set(reported.values())) == 1, reported
        (words,) = set(reported.values())
        assert path in words and f"[table {TABLE}]" in words and PROMISE in words
        assert not any(_tried_again(result) for result in results)
        # Nor by the sensor: the runs say that another attempt changes nothing.
        for result in results[:3]:
            run = project.instance.get_run_by_id(result.run_id)
            assert run is not None and _WAITS_FOR[run.tags[WAITS_FOR_TAG]] == "file"

        again = project.run("whole_walk", TABLE, dry_run=False)
        assert again.success, failures(again)


_JOBS: tuple[tuple[str, bool | None], ...] = (
    ("whole_walk", False),
    ("plan", None),
    ("handoff", False),
    ("orphans", False),
)


def _tried_again(result: ExecuteInProcessResult) -> bool:
    return any(event.is_step_up_for_retry for event in result.all_events)
