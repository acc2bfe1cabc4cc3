"""How long the runs of maintenance windows took, by table and step: what a forecast of a window adds up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from sqlalchemy import Engine, Index, Integer, func, select
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import Filled, Key, table_of

Seconds = float


@dataclass(frozen=True)
class RunTime:
    """One run that a window started. `step` is the step's job, or `nightly_walk`. `parallel_runs` is how many such runs
    the instance allowed at once; None without a limit."""

    run_id: Key
    table: str
    step: str
    parallel_runs: Annotated[int | None, {"type_": Integer}]
    started_at: datetime
    finished_at: Filled


run_times = table_of(RunTime, "run_times", Index("run_times_finished", "finished_at"))


class RunTimes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def note(self, run_id: str, table: str, step: str, started_at: datetime, parallel_runs: int | None) -> None:
        """Record that the run ends now. The first record of a run counts."""
        row = {"run_id": run_id, "table_name": table, "step": step, "started_at": started_at}
        statement = upsert(run_times).values(**row, parallel_runs=parallel_runs).on_conflict_do_nothing()
        with around("run_times.note"), self._engine.begin() as connection:
            connection.execute(statement)

    def means(self, since: datetime) -> dict[str, dict[str, Seconds]]:
        """Return the mean duration of the runs that ended since then, by step and table."""
        seconds = func.extract("epoch", run_times.c.finished_at - run_times.c.started_at)
        query = (
            select(run_times.c.step, run_times.c.table_name, func.avg(seconds).label("mean"))
            .where(run_times.c.finished_at >= since)
            .group_by(run_times.c.step, run_times.c.table_name)
        )
        found: dict[str, dict[str, Seconds]] = defaultdict(dict)
        with self._engine.connect() as connection:
            for row in connection.execute(query):
                found[row.step][row.table_name] = float(row.mean)
        return found

    def parallel_runs(self) -> int | None:
        """Return how many runs the instance allowed at once at the newest run; None without a limit or a run."""
        query = select(run_times.c.parallel_runs).order_by(run_times.c.finished_at.desc()).limit(1)
        with self._engine.connect() as connection:
            return connection.execute(query).scalar_one_or_none()
