"""One Nessie server per process; each test has it empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from artemis_lifecycle_tests.conftest import MakeConfig, _forget
from artemis_lifecycle_tests.nessie import server
from artemis_lifecycle_tests.nessie.world import World
from artemis_lifecycle_tests.protection.databases import databases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["databases"]

MakeWorld = Callable[..., World]


@pytest.fixture(scope="session")
def nessie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Nessie]:
    with server.running(None, tmp_path_factory.mktemp("nessie")) as running:
        yield running


@pytest.fixture
def make_world(nessie: server.Nessie, make_config: MakeConfig, spark: SparkSession) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(mark: dict[str, Any] | None = None, **orphans: Any) -> World:
        first = make_config()
        # Tests of one module share a database, and each catalog has a history in it.
        name = first.catalogs.live.name.replace("live", "versions")
        other = {"type": "nessie", "uri": nessie.api, "warehouse": f"file://{first.home}-{name}", "mark": mark or {}}
        ages = {"min_age": "0s", "min_age_floor": "0s", "max_share": 1, **orphans}
        config = make_config(
            catalogs={"others": {name: other}},
            defaults={"orphans": ages, "dropped": {"keep": "0s", "approval": "guards"}},
        )
        made.append(World(nessie.api, name, config, spark))
        made[-1].reset()
        return made[-1]

    yield make
    for world in made:
        for name in world.catalogs:
            _forget(spark, name)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()
