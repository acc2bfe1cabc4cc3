"""Collected only when it is asked for by its path, as `make nightly` does.

`$ARTEMIS_SOAK_LOCK` names a file that heavy cases lock while they run, where a machine is shared with other work.
`$ARTEMIS_SOAK_HOME` names a folder in which the history for the killed walks stands and stays, for three hours.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from artemis_lifecycle_tests.soak import machine

HERE = Path(__file__).resolve().parent

# Read before the fixture of the tests' conftest takes such variables away.
machine.LOCK = os.environ.get("ARTEMIS_SOAK_LOCK")
machine.HOME = os.environ.get("ARTEMIS_SOAK_HOME")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    return None if any(HERE in (path, *path.parents) for path in asked) else True
