"""An environment that is packed for executors has this package as it is here, and what its tasks import."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from artemis_lifecycle.code_version import content_hash
from artemis_lifecycle.errors import BadInput, EnvironmentMissing
from artemis_lifecycle.spark import packing
from artemis_lifecycle.spark.executors import PACKAGES


@pytest.mark.seconds
def test_a_packed_environment_has_the_code_that_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = packing._required()
    assert {name.replace("_", "-") for name in PACKAGES} < every.keys()
    assert {"llvmlite", "pydantic", "sqlalchemy", "google-cloud-storage", "azure-identity"} < every.keys()
    assert not {"pyspark", "dagster", "pytest", "matplotlib"} & every.keys()
    few = {name: every[name] for name in ("artemis-lifecycle", "xxhash")}
    monkeypatch.setattr(packing, "_required", lambda: few)
    archive = tmp_path / "environment.tar.gz"
    assert packing.pack_environment(archive) == ("artemis-lifecycle", "xxhash")
    assert [each.name for each in tmp_path.iterdir()] == [archive.name]
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "executor", filter="fully_trusted")
    code = "import artemis_lifecycle.code_version as it, xxhash; print(it.__file__, xxhash.__file__, it.content_hash())"
    said = subprocess.run(
        ["executor/bin/python", "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    ).stdout.split()
    within = f"{tmp_path}/executor/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/"
    assert said[0].startswith(within) and said[1].startswith(within) and said[2] == content_hash()


def test_what_cannot_be_packed_is_an_error_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"is not a \.tar\.gz file"):
        packing.pack_environment(tmp_path / "environment.tar")
    monkeypatch.setattr(packing, "Requirement", lambda text: Requirement(text.replace("numba", "no-such-library")))
    with pytest.raises(EnvironmentMissing, match=r"no-such-library.* is required and not installed"):
        packing.pack_environment(tmp_path / "environment.tar.gz")
    assert list(tmp_path.iterdir()) == []
