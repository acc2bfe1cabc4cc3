"""Homes for servers of their own, where every user can reach them (pytest's own folders are closed to others)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.errors import EnvironmentMissing


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter. Servers in homes directly under it are removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="artemis homes "))
    folder.chmod(0o755)
    yield folder
    for home in folder.glob("**/postgres/server.json"):
        with suppress(EnvironmentMissing):  # Another user's.
            EmbeddedPostgres(home.parent.parent).remove()
    shutil.rmtree(folder)


@pytest.fixture
def server(place: Path) -> EmbeddedPostgres:
    """A server that is not set up yet."""
    return EmbeddedPostgres(place / "home", {"fsync": "off"})
