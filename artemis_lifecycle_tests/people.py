"""A second person: one with their own Postgres login."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from sqlalchemy import Engine, text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.operations.cold_tier import ThawRecord
from artemis_lifecycle.operations.roles import APPROVER, LIFECYCLE


@contextmanager
def login(engine: Engine, *roles: str) -> Iterator[str]:
    """The address of the engine's database for a new login, which has these roles."""
    name = f"somebody_{uuid4().hex[:8]}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'"))
        for role in roles:
            connection.execute(text(f"GRANT {role} TO {name}"))
    try:
        yield engine.url.set(username=name, password="secret").render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {name}"))
            connection.execute(text(f"DROP ROLE {name}"))


@contextmanager
def second_person(lifecycle: Lifecycle, *roles: str) -> Iterator[Lifecycle]:
    """The same lifecycle, opened by another person, who may approve (unless other roles are named)."""
    with login(lifecycle.operations.engine, *(roles or (LIFECYCLE, APPROVER))) as uri:
        operations = lifecycle.config.operations.model_copy(update={"uri": uri})
        config = lifecycle.config.model_copy(update={"operations": operations})
        with Lifecycle.open(config, spark=lifecycle.spark) as other:
            yield other


def approve_thaw(lifecycle: Lifecycle, thaw_id: str, who: str = "Bob", why: str = "") -> ThawRecord:
    """Approve as a second person."""
    with second_person(lifecycle) as other:
        return other.approve_thaw(thaw_id, who, why)
