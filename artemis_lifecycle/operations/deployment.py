"""The identity of the operations database."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

_SERVER = sa.text("SELECT system_identifier::text FROM pg_control_system()")
_IDENTITY = sa.text(
    "SELECT operations_id, (SELECT oid FROM pg_database WHERE datname = current_database()) || '/' || "
    "'lifecycle.identity'::regclass::oid, pg_postmaster_start_time(), "
    "has_function_privilege('pg_control_system()', 'EXECUTE') FROM lifecycle.identity"
)


@dataclass(frozen=True)
class Deployment:
    """An operations database and its root.

    `operations_id` is created once, and is copied with backups and clones. `server` (the Postgres system identifier;
    None if the role may not read it) and `place` (the oids of the database and of the identity table) are not copied.
    `address` is for people: host, port and database.
    """

    operations_id: str
    server: str | None
    place: str
    address: str
    root: str

    def difference(self, other: Deployment) -> str | None:
        """Return why the two are different deployments; None if they are the same."""
        if self.operations_id != other.operations_id:
            return "it is another operations database"
        servers = {self.server, other.server} - {None}
        if self.place != other.place or len(servers) > 1:
            return "it is a copy of the operations database, a clone or a restored backup"
        if self.root != other.root:
            return f"operations.root differs ({self.root}, not {other.root})"
        return None


def read_deployment(engine: sa.Engine, root: str) -> Deployment:
    """Read the current identity of the operations database behind `engine`; `root` in its normal form."""
    with engine.connect() as connection:
        operations_id, place, started_at, may_read = connection.execute(_IDENTITY).one()
        # A running server keeps its identifier. A pooler can put another server behind a connection.
        known = connection.info.get(_SERVER)
        if known is None or known[0] != (started_at, may_read):
            server = None
            if may_read:
                try:
                    server = str(connection.execute(_SERVER).scalar_one())
                except DBAPIError:
                    # Some managed servers have the function but refuse to answer; then only the oids distinguish
                    # clones.
                    connection.rollback()
            known = connection.info[_SERVER] = ((started_at, may_read), server)
    return Deployment(str(operations_id), known[1], str(place), _address(engine.url), root)


def _address(url: sa.URL) -> str:
    host = url.host or url.query.get("host") or "the local socket"
    return f"{host}:{url.port or 5432}/{url.database or ''}"
