"""What a container takes away: a name for the user id, a package and a home that can be written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import artemis_lifecycle

ANY_USER = ["unshare", "--user", "--map-user=12345", "--map-group=0"]

CODE = """
from artemis_lifecycle.doctor import services
from artemis_lifecycle.operations.decisions import person
from artemis_lifecycle.spark.session import open_session
print(person().partition("@")[0], services.__file__)
print(services.checked("java", services.java))
print(services.checked("compiled loops", services.compiled_loops))
open_session({})
"""


@pytest.mark.seconds
@pytest.mark.skipif(
    subprocess.run([*ANY_USER, "true"], capture_output=True).returncode != 0,
    reason="user namespaces are forbidden here",
)
def test_a_user_without_a_name_or_anything_to_write_reads_metadata_and_is_told_why_spark_does_not_start(
    tmp_path: Path,
) -> None:
    package = Path(artemis_lifecycle.__file__).parent
    copied = shutil.copytree(package, tmp_path / "site" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for each in copied.rglob("*"):
        each.chmod(0o555 if each.is_dir() else 0o444)
    copied.chmod(0o555), (tmp_path / "home").mkdir(mode=0o555)
    said = subprocess.run(
        [*ANY_USER, sys.executable, "-c", CODE],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(copied.parent), "HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    user, java, loops = said.stdout.splitlines()
    assert user == f"12345 {copied / 'doctor' / 'services.py'}"
    assert "status='failed'" in java and "The user id 12345 has no name" in java and "libnss_wrapper" in java
    assert "status='warning'" in loops and "each process compiles them" in loops
    assert "EnvironmentMissing" in said.stderr and "Spark's JVM does not start without one" in said.stderr
