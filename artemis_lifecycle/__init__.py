"""Artemis Lifecycle: the life of Apache Iceberg tables after the commit.

`Lifecycle` is the public face; the rooms below it are named after the steps of the walk (docs/architecture.md).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle as Lifecycle
    from artemis_lifecycle.config.models import LifecycleConfig as LifecycleConfig
    from artemis_lifecycle.contracts import CommitLineage as CommitLineage
    from artemis_lifecycle.contracts import LineageRequirements as LineageRequirements
    from artemis_lifecycle.contracts import validate_lineage as validate_lineage
    from artemis_lifecycle.errors import LifecycleError as LifecycleError

# Columns that come out of a file or from Spark can begin at any address. Arrow's default is a warning for each of them.
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")

__all__ = ["CommitLineage", "Lifecycle", "LifecycleConfig", "LifecycleError", "LineageRequirements", "validate_lineage"]

_HOMES = {
    "CommitLineage": "artemis_lifecycle.contracts",
    "Lifecycle": "artemis_lifecycle.api",
    "LifecycleConfig": "artemis_lifecycle.config.models",
    "LifecycleError": "artemis_lifecycle.errors",
    "LineageRequirements": "artemis_lifecycle.contracts",
    "validate_lineage": "artemis_lifecycle.contracts",
}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: Spark's workers import this package by the thousand and need none of these.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    if name == "__version__":
        from artemis_lifecycle.code_version import package_version

        return package_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
