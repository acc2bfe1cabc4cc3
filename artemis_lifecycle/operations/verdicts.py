"""The results of the checks of expiration plans. Verdicts are append-only; the newest of each check counts."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine, Index

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import Filled, Serial, insert_record, records, table_of


@dataclass(frozen=True)
class VerdictRecord:
    """One result of one check of one plan; `detail` says what the check found."""

    verdict_id: Serial
    plan_id: str
    check_name: str
    passed: bool
    detail: str
    judged_at: Filled


verdicts = table_of(VerdictRecord, "verdicts", Index("verdicts_of_plan", "plan_id", "verdict_id"))


class Verdicts:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, plan_id: str, check_name: str, detail: str, *, passed: bool) -> VerdictRecord:
        """Record one result; it counts from now on."""
        with around("verdicts.add"), self._engine.begin() as connection:
            return insert_record(
                connection, VerdictRecord, plan_id=plan_id, check_name=check_name, passed=passed, detail=detail
            )

    def newest(self, plan_id: str) -> dict[str, VerdictRecord]:
        """Return the newest result of each check of the plan, by check name."""
        found = records(self._engine, VerdictRecord, verdicts.c.plan_id == plan_id, order_by=(verdicts.c.verdict_id,))
        return {record.check_name: record for record in found}
