"""The configuration that the benches share: catalogs, state and home of their own, on the embedded Postgres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from artemis_lifecycle.config.models import LifecycleConfig


def config_in(
    folder: Path,
    uri: str,
    home: Path,
    *,
    defaults: Mapping[str, Any],
    warehouse: str | None = None,
    memory: str | None = None,
    roots: Sequence[str] = (),
    **catalog: Any,
) -> LifecycleConfig:
    """Catalogs `live_<folder>`, with `roots`, and `cold_<folder>`. `warehouse` has `{}` for the tier; `memory` is the
    driver's."""
    return LifecycleConfig.model_validate(
        {
            "catalogs": {
                tier: {
                    "name": f"{tier}_{folder.name.replace('-', '_')}",
                    "uri": uri,
                    "warehouse": (warehouse or f"file:{folder}/{{}}").format(tier),
                    **({"roots": roots} if roots and tier == "live" else {}),
                    **catalog,
                }
                for tier in ("live", "cold")
            },
            "operations": {"uri": uri, "root": f"file://{folder}/state"},
            "spark": {"master": "local[2]", "conf": {"spark.driver.memory": memory} if memory else {}},
            "defaults": defaults,
            "tables": {"bench.*": {}},
            "home": str(home),
        }
    )
