"""Tables of any name are partitions: found, asked for and walked as plain ones are."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from dagster._core.definitions.partitions.utils import raise_error_on_invalid_partition_key_substring
from hypothesis import example, given
from hypothesis import strategies as st

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.defs import sensors
from artemis_lifecycle.defs.progress import governed_tables
from artemis_lifecycle.defs.run import materialize_walk
from artemis_lifecycle.defs.tags import PARTITIONS_NAME, partitioned_tables
from artemis_lifecycle.escaping import partition_key, table_of
from artemis_lifecycle.spark.sql import name as sql_name
from artemis_lifecycle_tests.defs.conftest import Project
from artemis_lifecycle_tests.defs.test_sensors import tick
from artemis_lifecycle_tests.policies import AT_ONCE

NAMES: tuple[str, ...] = ("db.quo\"te' $\\x$, 日本", "encoded:%2E.tab\there")
if "ARTEMIS_SOAK" in os.environ:
    NAMES += ("db.`x.y`", "db.`a...b [*]`")


@pytest.mark.seconds
@given(st.text(st.one_of(st.characters(), st.sampled_from('.%\n\tencod:,[]"')), max_size=20))
@example("encoded:%2E%2E%2E")
@example('db.`a,b["c"]`')
@example("....")
def test_every_name_has_a_key_that_dagster_takes_and_that_is_read_back(table: str) -> None:
    raise_error_on_invalid_partition_key_substring([partition_key(table)])
    # A list, a range or a quoted key to the UI, in which no backfill could select the table.
    assert not set(',[]"').intersection(partition_key(table))
    assert table_of(partition_key(table)) == table


@pytest.mark.parametrize("table", ["db.t", "db.`x.y`", "db.with space; % and ü", "db.`a..b`"])
def test_what_dagster_takes_stays_as_it_is(table: str) -> None:
    assert partition_key(table) == table


@pytest.mark.no_guardian(reason="its readers decode percent signs in paths")
def test_tables_of_any_name_are_found_and_walked(make_project: Callable[..., Project]) -> None:
    project = make_project(defaults=AT_ONCE, tables={name: {} for name in NAMES})
    live = project.config.catalogs.live.name
    for name in NAMES:
        full = parse(name).sql(live)
        project.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {sql_name(live, *parse(name).namespace)}")
        project.spark.sql(f"CREATE TABLE {full} (id bigint) USING iceberg")
        for number in (1, 2):
            project.spark.sql(f"INSERT OVERWRITE {full} VALUES ({number})")

    for request in tick(project, sensors.discovery).dynamic_partitions_requests or ():
        project.instance.add_dynamic_partitions(PARTITIONS_NAME, list(request.partition_keys))
    assert partitioned_tables(project.instance) == set(NAMES)
    with project.lifecycle() as lifecycle:
        assert set(governed_tables(lifecycle, project.instance)) == set(NAMES)
        walks = materialize_walk(NAMES, config_path=project.path, instance=project.instance, spark=project.spark)
        assert [(walk.table, walk.succeeded, walk.failures, walk.failed_checks) for walk in walks] == [
            (name, True, (), ()) for name in NAMES
        ]
        for name in NAMES:
            assert len(lifecycle.snapshot_history(name).snapshots) == 1
            assert [row["id"] for row in lifecycle.read(name).collect()] == [2]
        assert partitioned_tables(project.instance) == set(NAMES)
