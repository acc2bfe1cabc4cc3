"""An operations database meets the package of another version: migrated with what it has, or refused in words."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from artemis_lifecycle.operations.database import connect
from artemis_lifecycle.operations.migrations import HEAD

EMPTY_DATABASE = True
REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "artemis_lifecycle"
EARLIER = os.environ.get("ARTEMIS_EARLIER")
"""A commit to upgrade from. Default: the last release; before the first, the commit before the schema's last change."""

PLACE_HOLD = "operations.holds.place('uuid', 'db.t', owner='ana', reason='audit')"
OPEN = """
import sys
from artemis_lifecycle.errors import OperationsUnavailable
from artemis_lifecycle.operations.database import Operations, schema_state
try:
    with Operations.open(sys.argv[1]) as operations:
        {}
        print("opened", schema_state(operations.engine)[0], *(each.reason for each in operations.holds.active()))
except OperationsUnavailable as error:
    print(error)
"""


def opened(site: Path, uri: str, statement: str = "pass") -> str:
    """What an installed version says of the database at `uri`."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN.format(statement), uri],
        cwd=site,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def statements(uri: str, *texts: str) -> None:
    engine = connect(uri)
    with engine.begin() as connection:
        for text in texts:
            connection.exec_driver_sql(text)
    engine.dispose()


NEWER = f'''
from alembic import op

revision, down_revision, branch_labels, depends_on = "9001", "{HEAD}", None, None


def upgrade() -> None:
    op.execute("CREATE TABLE lifecycle.of_a_newer_version (id INT)")
'''


@pytest.mark.slow
def test_a_newer_version_migrates_what_is_there_and_the_older_one_is_refused(postgres_uri: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "artemis_lifecycle", ignore=shutil.ignore_patterns("__pycache__"))
    migrations = tmp_path / "artemis_lifecycle" / "operations" / "migrations"
    (migrations / "versions" / "9001_newer.py").write_text(NEWER)
    head = (migrations / "__init__.py").read_text()
    (migrations / "__init__.py").write_text(head.replace(f'HEAD = "{HEAD}"', 'HEAD = "9001"'))

    assert opened(REPOSITORY, postgres_uri, PLACE_HOLD) == f"opened {HEAD} audit"
    assert opened(tmp_path, postgres_uri) == "opened 9001 audit"
    assert opened(tmp_path, postgres_uri) == "opened 9001 audit"
    refused = opened(REPOSITORY, postgres_uri)
    assert "is at revision 9001, which this version does not know" in refused
    assert "Left untouched: the database" in refused and "or a newer one" in refused
    statements(postgres_uri, "DROP SCHEMA lifecycle CASCADE")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.strip()


def _installed(commit: str, place: Path) -> Path:
    """Return a folder with what the wheel of a commit installs."""
    source = subprocess.run(["git", "archive", commit], cwd=REPOSITORY, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(source)) as archive:
        archive.extractall(place / "source", filter="data")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)],
        cwd=place / "source",
        env={**os.environ, "PYTHONPATH": "", "ARTEMIS_JARS": str(REPOSITORY / ".artemis" / "jars"), "JAVA_HOME": ""},
        capture_output=True,
        check=True,
    )
    (wheel,) = place.glob("*.whl")
    shutil.unpack_archive(wheel, place / "site", "zip")
    return place / "site"


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("javac") is None, reason="a wheel's classes are compiled by a JDK")
def test_wheels_of_two_commits_share_a_database_or_say_why_not(postgres_uri: str, tmp_path: Path) -> None:
    schema = ["artemis_lifecycle/operations/tables.py", "artemis_lifecycle/operations/migrations"]
    release = _git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
    earlier = EARLIER or release or _git("log", "-1", "--format=%H^", "--", *schema)
    if not _git("rev-parse", "--verify", "--quiet", f"{earlier}^{{commit}}"):
        pytest.skip(f"the history has no {earlier}: a shallow clone")
    (tmp_path / "old").mkdir(), (tmp_path / "new").mkdir()
    old, new = _installed(earlier, tmp_path / "old"), _installed("HEAD", tmp_path / "new")
    before = opened(old, postgres_uri, PLACE_HOLD)
    assert before.startswith("opened") and before.endswith("audit")
    after = opened(new, postgres_uri)
    print(f"from {earlier}: {after}")
    if after.startswith("opened"):
        assert after.endswith("audit")
        again = opened(old, postgres_uri)
        assert again == before or "which this version does not know" in again
    else:
        # Before the first release, the first revision changes in place.
        assert not release and f"is at revision {HEAD}, but not as this version makes it" in after
        assert opened(old, postgres_uri) == before
        statements(postgres_uri, "DROP SCHEMA lifecycle CASCADE")
        assert opened(new, postgres_uri) == f"opened {HEAD}"
    statements(postgres_uri, "DROP SCHEMA lifecycle CASCADE")
