"""Each command of docs/deploy.md is run, as far as it goes without a cluster, an engine of containers or an image."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from shlex import split

import pytest
import yaml

from artemis_lifecycle.config.loading import load_config

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "deploy.md").read_text()
TOOLS = "artemis|make|dagster|dagster-daemon|docker-compose|kubectl|helm"
BLOCKS = re.findall(r"(?:^    .+\n)+", PAGE, re.MULTILINE)
IN_ORDER = [line.strip() for block in BLOCKS for line in block.splitlines() if re.match(rf" +({TOOLS}) ", line)]
"""Those of blocks: each may need the files of those before it."""
IN_SENTENCES = sorted(set(re.findall(rf"`((?:{TOOLS}) [^`]+)`", PAGE)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's reader stands: lifecycle.yaml and secrets, as it says, and the commands of this environment."""
    folder = tmp_path_factory.mktemp("deploy")
    (folder / "secrets").mkdir()
    (folder / "secrets" / "dagster_postgres").write_text("postgresql+psycopg2://dagster@postgres/dagster")
    (folder / "lifecycle.yaml").write_text("dagster: {code_location: artemis}\n")
    return folder


def run(command: str, folder: Path, code: int = 0) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["sh", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def dry(command: str, folder: Path) -> None:
    """What a cluster would be given has the files of the folder."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on the path")
    made = yaml.safe_load(run(f"{command.replace('…', 'secret')} --dry-run=client -o yaml", folder))
    wanted = {"--from-file=lifecycle.yaml": "lifecycle.yaml", "--from-file=secrets/": "dagster_postgres"}
    (given,) = (each for each in split(command) if each.startswith("--from-"))
    assert set(made["data"]) == {wanted.get(given, "postgresql-password")}


def composed(command: str, folder: Path) -> None:
    """The file is one that Compose takes, and its mounts are there."""
    file = split(command)[split(command).index("-f") + 1]
    services = yaml.safe_load((folder / file).read_text())["services"]
    mounts = {each.partition(":")[0] for service in services.values() for each in service.get("volumes", ())}
    assert all((folder / each).exists() for each in mounts if each.startswith("./"))
    if shutil.which("docker-compose") is not None:
        run(f"docker-compose -f {file} config", folder)


def installed(command: str, folder: Path) -> None:
    """The chart is that of Dagster's version, and takes the values; test_deployment.py renders it at night."""
    words = split(command)
    assert words[words.index("--version") + 1] == version("dagster")
    values = yaml.safe_load((folder / words[words.index("-f") + 1]).read_text())
    named = {each for line in IN_ORDER if line.startswith("kubectl") for each in split(line) if "artemis" in each}
    assert named == {"artemis", values["global"]["postgresqlSecretName"]}


def printed(command: str, folder: Path) -> None:
    """What is printed is YAML."""
    assert yaml.safe_load(run(f"{command.partition(' > ')[0]} | tee /dev/stderr", folder))
    run(command, folder)


def known(command: str, folder: Path) -> None:
    """The command is there, with the options that the page has."""
    words = [re.sub("[A-Z]{4,}", "x", each) for each in split(command, comments=True)]
    options = [each for each in words if each.startswith("-")]
    names = words[: words.index(options[0])] if options else words
    said = run(" ".join([*names, "--help"]), folder)
    assert all(re.search(rf"{each}\b", said) for each in options)


def targeted(command: str, folder: Path) -> None:
    """Make has the target."""
    run(f"make -n {command.removeprefix('make ')}", REPOSITORY)


CHECKS: dict[str, Callable[[str, Path], None]] = {
    "artemis deployment": printed,
    "artemis": known,
    "dagster": known,
    "make": targeted,
    "docker-compose": composed,
    "kubectl create": dry,
    "helm install": installed,
}
"""By how a command begins; the first that fits."""


@pytest.mark.parametrize("command", [*IN_ORDER, *IN_SENTENCES])
def test_a_command_of_the_page_works(command: str, folder: Path) -> None:
    check = next((check for start, check in CHECKS.items() if command.startswith(start)), None)
    assert check is not None, f"say here how `{command}` is tried"
    names = {"FILE": "helm-values", "s3://BUCKET/PREFIX": "s3://logs/runs", "VERSION": version("artemis-lifecycle")}
    for name, value in names.items():
        command = command.replace(name, value)
    check(command, folder)


def test_each_file_that_a_command_needs_is_made_before() -> None:
    assert [line.partition(" > ")[2] for line in IN_ORDER if " > " in line] == [
        "compose.yaml",
        "dagster.yaml",
        "workspace.yaml",
        "values.yaml",
    ]


def test_what_the_page_has_of_lifecycle_yaml_is_valid(tmp_path: Path) -> None:
    (block,) = (each for each in BLOCKS if each.startswith("    tables:"))
    (tmp_path / "lifecycle.yaml").write_text(re.sub("^    ", "", block, flags=re.MULTILINE))
    run = load_config(tmp_path / "lifecycle.yaml", {}).run("db.events")
    assert (run.memory, run.driver, run.cpu) == (16 * 1024, 8 * 1024, 4)
