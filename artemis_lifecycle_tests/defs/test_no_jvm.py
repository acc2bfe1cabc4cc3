"""Asset steps that find little to do start no JVM: each runs here while asking for a Spark session is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle_tests.defs.conftest import OTHER, TABLE, Project
from artemis_lifecycle_tests.defs.test_walk import failures


def _no_spark(_: Resources) -> NoReturn:
    raise AssertionError("Spark was started")


@pytest.mark.parametrize("dry_run", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_walk_with_nothing_due_starts_no_jvm(
    make_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    project = make_project(tables={"artemis.*": {}})
    project.create(TABLE)
    project.register(OTHER)
    with project.lifecycle() as lifecycle:
        lifecycle.record_lineage(TABLE)
    monkeypatch.setattr(Resources, "_session", _no_spark)
    for table in (TABLE, OTHER):
        for job in ("whole_walk", "nightly_walk"):
            run = project.run(job, table, dry_run=dry_run)
            assert not failures(run)
            assert run.asset_materializations_for_node("expiration_plan") or job == "nightly_walk"
