"""Four group roles of Postgres, and their grants: `artemis_ingest` for writers of tables, `artemis_lifecycle` for this
project, `artemis_approver` for people who may approve (in addition to `artemis_lifecycle`), `artemis_analyst` for
readers. None can log in: `GRANT artemis_analyst TO name` gives one to a person or a service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy.exc import ProgrammingError

from artemis_lifecycle.errors import Refused

INGEST, LIFECYCLE, ANALYST = "artemis_ingest", "artemis_lifecycle", "artemis_analyst"
APPROVER = "artemis_approver"

NO_RIGHT = "42501"
"""Postgres' error code for a missing right (insufficient_privilege)."""


@contextmanager
def refusing(what: str, *, table: str | None = None, untouched: str = "everything", hint: str) -> Iterator[None]:
    """Raise Refused, beginning with `what`, if Postgres says that the login lacks a right."""
    try:
        yield
    except ProgrammingError as error:
        if getattr(error.orig, "pgcode", None) != NO_RIGHT:
            raise
        raise Refused(
            f"{what}: {str(error.orig).splitlines()[0]}", table=table, untouched=untouched, hint=hint
        ) from None


@contextmanager
def where_allowed() -> Iterator[None]:
    """Leave out what Postgres refuses for want of a right: a question is answered without recording what it saw."""
    try:
        yield
    except ProgrammingError as error:
        if getattr(error.orig, "pgcode", None) != NO_RIGHT:
            raise


def approving(what: str) -> AbstractContextManager[None]:
    """Raise Refused if Postgres refuses an approval: the login neither is in APPROVER nor owns the schema."""
    return refusing(
        f"This login of Postgres may not approve {what}",
        untouched="it, and all files",
        hint=f"approve with a login that has the right: GRANT {APPROVER} TO …, by the owner of schema lifecycle "
        "(docs/roles.md)",
    )


def role_statements(grants: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield SQL that creates missing roles, and then gives each its `grants` (`SELECT ON TABLE t`, …).

    Roles belong to the whole server, and creating them needs a right. Without it, nothing fails and the roles stay
    missing: an administrator creates them before the first start. Running the statements again changes nothing.
    """
    for role in grants:
        yield f"""
        DO $$ BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
                CREATE ROLE {role} NOLOGIN;
            END IF;
        EXCEPTION
            WHEN insufficient_privilege THEN RAISE NOTICE 'role {role} is not made: no right to create roles';
            -- Another database of the server made it at the same moment.
            WHEN duplicate_object OR unique_violation THEN NULL;
        END $$
        """
    for role, rights in grants.items():
        statements = " ".join(f"GRANT {right} TO {role};" for right in rights)
        yield f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN {statements} END IF;
        EXCEPTION
            WHEN insufficient_privilege THEN RAISE NOTICE 'role {role} gets nothing here: no right to grant it';
        END $$
        """
