"""The definitions inside a user's code location: keys with a prefix, owners, tags, and the component."""

from __future__ import annotations

import ast
import importlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from dagster import AssetCheckKey, AssetKey, Definitions, asset
from dagster.components.core.package_entry import DG_PLUGIN_ENTRY_POINT_GROUP, get_package_objects_in_module
from dagster.components.testing.utils import create_defs_folder_sandbox

from artemis_lifecycle.defs.build import ASSETS, build_definitions
from artemis_lifecycle.defs.component import LifecycleComponent
from artemis_lifecycle.defs.tags import WALK
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.defs.conftest import TABLE
from artemis_lifecycle_tests.defs.test_definitions import CHECKS, DEPS

if TYPE_CHECKING:
    from dagster import AssetGraph

    from artemis_lifecycle_tests.defs.conftest import Project

PREFIX = ["lake", "care"]


@asset(key=["ingestion", "passes"])
def passes() -> None:
    """What a user's code location writes to a table."""


def names(graph: AssetGraph) -> set[str]:
    return {key.to_user_string() for key in graph.materializable_asset_keys}


def test_with_a_prefix_beside_other_assets_every_job_selects_ours_and_only_ours() -> None:
    ours = build_definitions(
        "/nowhere/lifecycle.yaml", PREFIX, ["team:lake"], {"domain": "orbit"}, upstream=[passes.key]
    )
    both = Definitions.merge(ours, Definitions(assets=[passes]))
    graph = both.resolve_asset_graph()
    assert names(graph) == {"ingestion/passes", *(f"lake/care/{name}" for name in [*DEPS, "fleet"])}
    for name, parents in DEPS.items():
        node = graph.get(AssetKey([*PREFIX, name]))
        assert {key.to_user_string() for key in node.parent_keys} == {f"lake/care/{parent}" for parent in parents}
        assert (node.owners, node.tags["domain"]) == (["team:lake"], "orbit")
    assert graph.get(AssetKey([*PREFIX, "live_table"])).parent_keys == {passes.key}
    checks = {(key.asset_key, key.name): graph.get_check_spec(key).blocking for key in graph.asset_check_keys}
    assert checks == {(AssetKey([*PREFIX, on]), name): blocking for (on, name), blocking in CHECKS.items()}
    plain = build_definitions("/nowhere/lifecycle.yaml")
    for job in plain.resolve_all_job_defs():
        if job.name.startswith("__"):
            continue
        selected = both.resolve_job_def(job.name)
        assert {key.path[-1] for key in selected.asset_layer.selected_asset_keys} == {
            key.path[-1] for key in job.asset_layer.selected_asset_keys
        }, job.name
        # The schedules' run configs name ops.
        assert {node.name for node in job.nodes} <= {node.name for node in selected.nodes}, job.name
    whole = both.resolve_job_def("whole_walk").asset_layer.selected_asset_keys
    assert whole == {AssetKey([*PREFIX, name]) for name in WALK}
    both.get_repository_def().load_all_definitions()


def test_every_asset_refers_to_the_function_that_computes_it() -> None:
    graph = build_definitions("/nowhere/lifecycle.yaml").resolve_asset_graph()
    assert len(ASSETS) == len(DEPS) + 1
    for key in graph.materializable_asset_keys:
        (found,) = graph.get(key).metadata["dagster/code_references"].code_references
        functions = {
            node.name: node
            for node in ast.walk(ast.parse(Path(found.file_path).read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        node = functions[key.path[-1]]
        assert found.line_number == min(each.lineno for each in [node, *node.decorator_list]), key


def test_assets_checks_and_ops_work_under_a_prefix(make_project: Callable[..., Project]) -> None:
    project = make_project(tables={"artemis.*": {"lineage": {"required": []}}})
    project.create(TABLE, commits=1)
    project.definitions = build_definitions(project.path, PREFIX)
    assert project.run("schema_record", TABLE).success
    assert project.run("observe", TABLE).success
    for name in ("snapshot_history", "schema_history", "lineage_ledger", "table_health"):
        key = AssetKey([*PREFIX, name])
        assert project.instance.get_materialized_partitions(key) == {TABLE}
    assert project.run("health_checks", TABLE).success
    key = AssetCheckKey(AssetKey([*PREFIX, "snapshot_history"]), "metadata_age")
    (state,) = project.instance.event_log_storage.get_asset_check_partition_info([key])
    assert (state.partition_key, state.latest_execution_status.value) == (TABLE, "SUCCEEDED")


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated", "ignore::dagster.BetaWarning")  # Dagster's own
def test_a_scaffolded_component_loads_the_definitions() -> None:
    config = {"defaults": {"retention": {"window": "0d"}}, "tables": {"artemis.*": {}}}
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(component_cls=LifecycleComponent, defs_path="lake")
        scaffolded = yaml.safe_load((folder / "defs.yaml").read_text())
        assert scaffolded["type"] == "artemis_lifecycle.defs.component.LifecycleComponent"
        attributes = {
            "config_path": "lifecycle.yaml",
            "key_prefix": PREFIX,
            "owners": ["team:lake"],
            "upstream": ["ingestion/passes"],
        }
        (folder / "defs.yaml").write_text(yaml.safe_dump(scaffolded | {"attributes": attributes}))
        (folder / "lifecycle.yaml").write_text(yaml.safe_dump(config))
        with sandbox.load_component_and_build_defs(defs_path=folder) as (component, definitions):
            assert isinstance(component, LifecycleComponent)
            graph = definitions.resolve_asset_graph()
            assert names(graph) == {f"lake/care/{name}" for name in [*DEPS, "fleet"]}
            # The file beside defs.yaml was read.
            commit = graph.get(AssetKey([*PREFIX, "expiration_commit"]))
            assert "defaults.retention.window is 0" in commit.metadata["warnings"].value
            assert commit.owners == ["team:lake"]
            assert definitions.resolve_job_def("nightly_walk").asset_layer.selected_asset_keys


def test_dg_finds_the_component() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (module,) = project["entry-points"][DG_PLUGIN_ENTRY_POINT_GROUP].values()
    assert LifecycleComponent in dict(get_package_objects_in_module(importlib.import_module(module))).values()
