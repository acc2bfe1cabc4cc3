"""The image and the stack of deploy/, as `make stack` starts and uses them, and what of it needs no engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from artemis_lifecycle.config.loading import ENVIRONMENT, load_config
from artemis_lifecycle.embedded.jars import ICEBERG, ICEBERG_AZURE, ICEBERG_GCP, POSTGRES, resolve

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"


def test_the_stack_s_configuration_is_valid_and_takes_its_secrets_from_files(tmp_path: Path) -> None:
    text = (DEPLOY / "stack" / "lifecycle.yaml").read_text()
    mounted = set(re.findall(r"\$\{file:/run/secrets/(\w+)\}", text))
    for name in mounted:
        (tmp_path / name).write_text(f"secret-of-{name}")
    (tmp_path / "lifecycle.yaml").write_text(text.replace("/run/secrets", str(tmp_path)))
    config = load_config(tmp_path / "lifecycle.yaml", {})
    assert config.catalogs.live.properties["s3.secret-access-key"] == "secret-of-s3_secret_key"
    assert "secret-of" not in repr(config)
    assert mounted == {"postgres_password", "s3_secret_key"}


def test_each_service_runs_without_rights_and_says_when_it_is_well() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"net", "init", "code", "web", "daemon", "metrics"}
    for name, each in services.items():
        assert (each["read_only"], each["cap_drop"], each["user"]) == (True, ["ALL"], "12345:0")
        assert "no-new-privileges:true" in each["security_opt"]
        assert name in ("net", "init") or ("healthcheck" in each and each["stop_grace_period"] == "30s")
        assert set(each["environment"]) <= {"ARTEMIS_CONFIG", "ARTEMIS_DAGSTER_POSTGRES_FILE", *ENVIRONMENT}


def image_script() -> ModuleType:
    spec = spec_from_file_location("image", DEPLOY / "image.py")
    assert spec is not None and spec.loader is not None
    image = module_from_spec(spec)
    spec.loader.exec_module(image)
    return image


def test_an_image_without_an_extra_has_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXTRAS", raising=False)
    whole = image_script()
    monkeypatch.setenv("EXTRAS", "kubernetes openlineage")
    small = image_script()
    packages = [image.needed("artemis-lifecycle", frozenset(image.EXTRAS)) for image in (whole, small)]
    assert packages[0] - packages[1] >= {"matplotlib", "dagster-webserver", "azure-identity", "google-cloud-storage"}
    assert {"dagster-k8s", "openlineage-python", "pyspark"} <= packages[1] < packages[0]
    assert set(whole.JARS) - set(small.JARS) == {ICEBERG_AZURE, ICEBERG_GCP}


def test_the_image_has_the_licenses_of_its_jars(tmp_path: Path) -> None:
    image = image_script()
    for jar in resolve(REPOSITORY / ".artemis", (ICEBERG, POSTGRES))[:2]:
        image.licenses(jar, tmp_path / jar.stem)
        found = [each for each in (tmp_path / jar.stem).iterdir() if "LICENSE" in each.name]
        assert found and all(each.stat().st_size > 1000 for each in found)


@pytest.mark.seconds
def test_a_user_without_a_name_gets_one_from_the_entrypoint_and_the_secret_of_a_file(tmp_path: Path) -> None:
    any_user = ["unshare", "--user", "--map-user=12345", "--map-group=0"]
    if subprocess.run([*any_user, "true"], capture_output=True).returncode != 0:
        pytest.skip("user namespaces are forbidden here")
    text = re.sub("/opt/artemis|/tmp", str(tmp_path), (DEPLOY / "entrypoint.sh").read_text())
    script, secret = tmp_path / "entrypoint.sh", tmp_path / "secret"
    script.write_text(text), secret.write_text("postgresql://x\n"), (tmp_path / "numba").mkdir()
    # Without the library, which the image has, the loader says so and goes on.
    code = "from os import environ as e; print(e['NSS_WRAPPER_PASSWD'], e['ARTEMIS_DAGSTER_POSTGRES'], e['HOME'])"
    said = subprocess.run(
        [*any_user, "sh", str(script), sys.executable, "-c", code],
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/proc",
            "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
            "ARTEMIS_DAGSTER_POSTGRES_FILE": str(secret),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    names = tmp_path / ".artemis-passwd"
    assert said.stdout.split() == [str(names), "postgresql://x", str(tmp_path)]
    assert names.read_text().startswith("artemis:x:12345:0:") and (tmp_path / "cache").is_dir()


@pytest.mark.nightly
def test_the_stack_is_built_started_used_and_ended() -> None:
    lacking = [each for each in ("docker", "docker-compose", "mmdebstrap") if shutil.which(each) is None]
    assert not lacking, (
        f"no {', '.join(lacking)}: apt-get install docker.io docker-compose mmdebstrap, and start dockerd"
    )
    done = subprocess.run(["make", "stack"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ down and up keep all" in done.stdout
