"""Runs the revisions with Alembic."""

from __future__ import annotations

from threading import Lock

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

_one_at_a_time = Lock()


def upgrade(connection: Connection) -> bool:
    """Upgrade to the newest revision. Return False if the schema's revision is unknown here."""
    config = _config()
    config.attributes["connection"] = connection
    try:
        # Alembic keeps what it works on in globals.
        with _one_at_a_time:
            command.upgrade(config, "head")
    except CommandError:
        return False
    return True


def revisions() -> set[str]:
    """Return every known revision."""
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "artemis_lifecycle.operations:migrations")
    return config
