"""pypaimon in an environment of its own, `.artemis/paimon-venv`: made at first use from requirements.lock, by hash.

pypaimon holds pandas and pyarrow below the versions that this project has, so it is driven as a process.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from artemis_lifecycle.embedded.locks import file_lock
from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle_tests.paimon.bundle import HOME

_LOCK = Path(__file__).with_name("requirements.lock")
_SCRIPT = Path(__file__).with_name("pypaimon_calls.py")
_SECONDS = 900
"""How long one install may take, and another process wait for it."""


def python() -> Path:
    """Return the interpreter of pypaimon's environment. Raises EnvironmentMissing when that cannot be made."""
    folder = HOME.resolve() / "paimon-venv"
    interpreter, made = folder / "bin" / "python", folder / "made-from"
    wanted = f"{sys.version} {hashlib.sha256(_LOCK.read_bytes()).hexdigest()}"
    with file_lock(folder.with_suffix(".lock"), timeout=2 * _SECONDS):
        if not made.exists() or made.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(folder))
            install = ("-m", "pip", "--disable-pip-version-check", "--retries", "5", "install", "--quiet")
            _run(str(interpreter), *install, "--no-deps", "--require-hashes", "-r", str(_LOCK))
            made.write_text(wanted)
    return interpreter


def pypaimon(*calls: tuple[str, list[Any], dict[str, Any]]) -> list[Any]:
    """Make the calls of pypaimon_calls.py, each as (name, arguments, named arguments), in one process; return what each
    returns."""
    # What this process tells its own children about Python does not concern that one.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(python()), str(_SCRIPT)],
        input=json.dumps(calls),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def _run(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    if done.returncode:
        raise EnvironmentMissing(
            f"pypaimon's environment cannot be made: {(done.stdout + done.stderr).strip()[-2000:]}",
            path=str(_LOCK),
            hint="check the network, and that Python can make environments (`apt-get install python3-venv`)",
        )
