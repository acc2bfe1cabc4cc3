"""Imports the scripts of spec/, which is not a package, and installs what their checker needs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from types import ModuleType

from artemis_lifecycle_tests.conftest import REPOSITORY

NEEDED = ("spin", "gcc")


def load(name: str) -> ModuleType:
    """The module of that name in spec/."""
    loaded = f"spec_{name}"
    if loaded not in sys.modules:
        found = importlib.util.spec_from_file_location(loaded, REPOSITORY / "spec" / f"{name}.py")
        assert found is not None and found.loader is not None
        sys.modules[loaded] = importlib.util.module_from_spec(found)
        found.loader.exec_module(sys.modules[loaded])
    return sys.modules[loaded]


def require_checker() -> None:
    """Install it where we may."""
    if _lacks() and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], check=True, stdin=subprocess.DEVNULL)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "spin", "gcc", "libc6-dev"]
        subprocess.run(install, check=True, stdin=subprocess.DEVNULL)
    assert not _lacks(), "the model's checker is not installed: `sudo apt-get install spin gcc`"


def _lacks() -> list[str]:
    return [tool for tool in NEEDED if shutil.which(tool) is None]
