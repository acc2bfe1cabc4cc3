"""Four group roles of Postgres, and how rights are given to them: `artemis_ingest` for what writes tables,
`artemis_lifecycle` for this project, `artemis_approver` for people who may approve (beside `artemis_lifecycle`),
`artemis_analyst` for what only reads. None can log in: a person or a service gets one with
`GRANT artemis_analyst TO somebody`.

Belongs here: making the roles, and grants that do not fail where the roles are missing. Does not belong: which rights
(the migrations say that for the operations database, `catalogs/guard.py` for the catalogs').
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy.exc import ProgrammingError

from artemis_lifecycle.errors import Refused

INGEST, LIFECYCLE, ANALYST = "artemis_ingest", "artemis_lifecycle", "artemis_analyst"
APPROVER = "artemis_approver"

NO_RIGHT = "42501"
"""Postgres' code of an error for want of a right (insufficient_privilege)."""


@contextmanager
def approving(what: str) -> Iterator[None]:
    """Raise Refused where Postgres refuses an approval: the login is neither in APPROVER nor owns the schema."""
    try:
        yield
    except ProgrammingError as error:
        if getattr(error.orig, "pgcode", None) != NO_RIGHT:
            raise
        raise Refused(
            f"This login of Postgres may not approve {what}: {str(error.orig).splitlines()[0]}",
            untouched="it, and all files",
            hint=f"approve with a login of somebody who may: GRANT {APPROVER} TO …, by the owner of schema lifecycle "
            "(docs/roles.md)",
        ) from None


def role_statements(grants: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """SQL that makes the roles where they are not, and then gives each its `grants` (`SELECT ON TABLE t`, …).

    Roles belong to the whole server and take the right to create them. Without it nothing fails and the roles stay
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
