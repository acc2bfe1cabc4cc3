from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig

MakeLifecycle = Callable[..., Lifecycle]


@pytest.fixture
def make_lifecycle(make_config: Callable[..., LifecycleConfig], spark: SparkSession) -> Iterator[MakeLifecycle]:
    """`make_lifecycle(retention=…)`: catalogs of its own, a window of a day, no cold tier and no grace unless asked."""
    opened: list[Lifecycle] = []

    def make(**policy: Any) -> Lifecycle:
        defaults = {"retention": {"window": "1d"}, "cold_tier": {"enabled": False}, "deletion": {"grace": "0s"}}
        opened.append(Lifecycle.open(make_config(defaults=defaults | policy), spark=spark))
        return opened[-1]

    yield make
    for lifecycle in opened:
        lifecycle.resources.close()
