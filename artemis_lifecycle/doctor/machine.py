"""Checks of this machine: Java, the executors' Python, free space, versions of libraries."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.doctor.results import Check, Status
from artemis_lifecycle.embedded.jars import java_version, needed, require_java, resolve
from artemis_lifecycle.spark.executors import require_executors
from artemis_lifecycle.spark.session import local_cores, open_session, session_conf
from artemis_lifecycle.storage.local.paths import local_path
from artemis_lifecycle.storage.stores import is_local

_LOCK = Path(__file__).parents[2] / "requirements.lock"
_GIB = 2**30
_FREE = 5 * _GIB
"""Below it a warning, below a fifth of it an error: a compaction or a handoff of one table writes that much."""


def java() -> Check:
    """A Java that Spark runs on."""
    found = require_java()
    return Check("java", "ok", f"{java_version(found)} ({found})")


def versions() -> Check:
    """The installed libraries against what the package requires, and against requirements.lock where that is there."""
    try:
        required = [Requirement(each) for each in requires("artemis-lifecycle") or ()]
    except PackageNotFoundError:
        return Check("versions", "skipped", "artemis-lifecycle is not installed as a package")
    wrong, other = [], []
    for each in required:
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        found = _installed(each.name)
        if found is None or not each.specifier.contains(found, prereleases=True):
            wrong.append(f"{each.name} {found or 'is missing'}, required: {str(each.specifier) or 'any'}")
    for name, pinned in _locked().items():
        found = _installed(name)
        if found is not None and found != pinned:
            other.append(f"{name} {found}, locked: {pinned}")
    if wrong:
        return Check("versions", "failed", "; ".join(wrong), "pip install artemis-lifecycle again, or `make setup`")
    if other:
        return Check("versions", "warning", "; ".join(other), "`make setup` installs what requirements.lock names")
    locked = ", and as locked" if _LOCK.exists() else ""
    return Check("versions", "ok", f"{len(required)} libraries as required{locked}")


def free_space(config: LifecycleConfig) -> Check:
    """Room on each disk that the configuration writes to."""
    local = [Path(local_path(root)) for root in config.roots().values() if root is not None and is_local(root)]
    least: dict[int, tuple[int, Path]] = {}
    for place in (config.home, Path(tempfile.gettempdir()), *local):
        existing = next(each for each in (place, *place.parents) if each.exists())
        least[existing.stat().st_dev] = (shutil.disk_usage(existing).free, existing)
    summary = "; ".join(f"{existing}: {free / _GIB:.1f} GiB" for free, existing in least.values())
    smallest = min(free for free, _ in least.values())
    if smallest >= _FREE:
        return Check("free space", "ok", summary)
    status: Status = "failed" if smallest < _FREE // 5 else "warning"
    return Check("free space", status, summary, f"free {_FREE // _GIB} GiB on each, or move home and warehouses")


def executors(config: LifecycleConfig) -> Check:
    """The Python of Spark's workers. Starts a session on a cluster: only its executors know."""
    if local_cores(config.spark.master) is not None:
        python = config.spark.python or sys.executable
        if shutil.which(python) is None:
            return Check("executors' Python", "failed", f"there is no {python}", "set or unset spark.python")
        return Check("executors' Python", "ok", f"{python}, of local master {config.spark.master}")
    session = open_session(session_conf(config, {}, resolve(config.home, needed(config))))
    try:
        found = require_executors(session)
    finally:
        session.stop()
    if not found:
        return Check("executors' Python", "warning", "no executor was free to answer", "see the cluster's own pages")
    summary = "; ".join(f"{each.host}: {each.version} ({each.executable})" for each in found)
    return Check("executors' Python", "ok", summary)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _locked() -> dict[str, str]:
    """The versions that requirements.lock names for this Python and system."""
    text = _LOCK.read_text() if _LOCK.exists() else ""
    lines = (Requirement(line) for line in re.findall(r"(?m)^([A-Za-z0-9][^\n\\]*==[^\n\\]*)", text))
    return {
        each.name: str(each.specifier).removeprefix("==")
        for each in lines
        if each.marker is None or each.marker.evaluate()
    }
