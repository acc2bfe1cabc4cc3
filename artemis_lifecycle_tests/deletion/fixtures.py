"""The `world` fixture, shared by the tests of `deletion/` and `orphans/`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle_tests.deletion.world import World, local


@pytest.fixture(scope="module")
def world(spark: SparkSession, module_config: LifecycleConfig) -> Iterator[World]:
    """A catalog, a warehouse and a database of the module's own."""
    catalog = module_config.catalogs.live
    assert module_config.operations.uri is not None
    assert module_config.operations.root is not None
    assert catalog.warehouse is not None
    operations = Operations.open(module_config.operations.uri)
    reader = CatalogReader(catalog)
    yield World(spark, operations, reader, catalog.name, local(catalog.warehouse), module_config.operations.root)
    reader.close()
    operations.close()
