"""What all processes of a storm agree on, in one file of its home; and the rule by which writers commit.

A writer that no heartbeat protects must commit before its files are older than `min_age`, and one that has a heartbeat
while that lives. No clock of a busy machine may decide that: a trigger on the catalog's rows does, by Postgres' clock,
and turns the writer's commit away when it comes too late.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Engine, text

from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.holds import Writing

NAMESPACE = "soak"
PLAIN, PARTED, MERGED, NEWEST = (f"{NAMESPACE}.{name}" for name in ("plain", "parted", "merged", "newest"))
"""Unpartitioned; partitioned; deletes merged on reading; format 3, which pyiceberg reads and does not write."""

BY_PYICEBERG = (PLAIN, PARTED, MERGED)

_IDLE_MS = 2000
"""A commit that the trigger let pass becomes visible within that, or not at all."""

_MARGIN = 3
"""Seconds that a heartbeat must still live when the trigger looks: more than `_IDLE_MS`."""

_GUARD = f"""
CREATE TABLE IF NOT EXISTS soak_attempts (writer text PRIMARY KEY, heartbeat timestamptz, deadline timestamptz);
CREATE OR REPLACE FUNCTION soak_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    who text := current_setting('soak.writer', true);
    attempt soak_attempts;
BEGIN
    IF who IS NULL OR who = '' THEN
        RETURN NEW;
    END IF;
    SELECT * INTO attempt FROM soak_attempts WHERE writer = who;
    IF attempt.heartbeat IS NOT NULL THEN
        PERFORM 1 FROM lifecycle.heartbeats WHERE writer_id = who AND started_at = attempt.heartbeat
            AND expires_at > clock_timestamp() + interval '{_MARGIN} s';
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the heartbeat of % has had a gap', who;
        END IF;
    ELSIF attempt.deadline IS NULL OR clock_timestamp() > attempt.deadline THEN
        RAISE EXCEPTION '% comes too late', who;
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER soak_guard BEFORE UPDATE ON iceberg_tables FOR EACH ROW EXECUTE FUNCTION soak_guard();
"""


@dataclass(frozen=True)
class Place:
    """`direct` is the store without faults, for those who only look. Times are in seconds; `commit_within` is of
    writers without a heartbeat, `heartbeat` the time that one lives."""

    home: str
    seed: int
    direct: str
    tables: tuple[str, ...]
    heartbeats: tuple[str, ...]
    """Tables whose writers have heartbeats; those of the others have not."""
    commit_within: int
    heartbeat: int
    pause: float
    """Between two commits of a pyiceberg writer, at most."""
    most_files: int

    @property
    def config(self) -> LifecycleConfig:
        return load_config(self.config_path)

    @property
    def config_path(self) -> Path:
        return Path(self.home) / "storm.yaml"

    @property
    def rest_path(self) -> Path:
        """The configuration under which all comes to rest."""
        return Path(self.home) / "rest.yaml"

    @property
    def stop_path(self) -> Path:
        """Once it is there, everybody ends after what it is at."""
        return Path(self.home) / "stop"

    @property
    def stopping(self) -> bool:
        return self.stop_path.exists()

    def journal(self, name: str) -> Path:
        return Path(self.home) / "journals" / f"{name}.jsonl"

    def save(self) -> None:
        (Path(self.home) / "place.json").write_text(json.dumps(asdict(self)))


def load(home: str) -> Place:
    stored: dict[str, Any] = json.loads((Path(home) / "place.json").read_text())
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    return Place(**values)


def install_guard(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(_GUARD.replace("%", "%%"))


def uri_of(writer: str, uri: str) -> str:
    """The catalog's address for that writer, by which the trigger knows it."""
    options = f"-c soak.writer={writer} -c idle_in_transaction_session_timeout={_IDLE_MS}"
    return f"{uri}?options={quote(options)}"


@contextmanager
def attempt(place: Place, operations: Operations, writer: str, table: str, table_uuid: str) -> Iterator[None]:
    """One try of a writer to commit to a table, protected in the table's way."""
    if table not in place.heartbeats:
        _allow(operations, writer, None, place.commit_within)
        yield
        return
    with Writing(
        operations.heartbeats, table_uuid, table, writer, ttl=timedelta(seconds=place.heartbeat)
    ) as protection:
        _allow(operations, writer, protection._started_at, None)
        yield


def _allow(operations: Operations, writer: str, heartbeat: Any, seconds: int | None) -> None:
    with operations.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO soak_attempts VALUES (:w, :h, clock_timestamp() + :s * interval '1 s') "
                "ON CONFLICT (writer) DO UPDATE SET heartbeat = excluded.heartbeat, deadline = excluded.deadline"
            ),
            {"w": writer, "h": heartbeat, "s": seconds},
        )
