"""The newest result of each check of each table that Dagster runs. Plans store the verdicts of their own checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql import insert

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.tables import CLOCK, Filled, Key, records, table_of


@dataclass(frozen=True)
class CheckResult:
    """One result. `is_red` is False for a warning; `text` says what the check found."""

    table: Key
    asset: Key
    check_name: Key
    is_red: bool
    text: str
    evaluated_at: Filled


check_results = table_of(CheckResult, "check_results")


class CheckResults:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def note(self, table: str, asset: str, check_name: str, text: str, *, is_red: bool) -> None:
        """Replace the former result of this check of the table."""
        found = {"is_red": is_red, "text": text}
        statement = insert(check_results).values(table_name=table, asset=asset, check_name=check_name, **found)
        with around("check_results.note"), self._engine.begin() as connection:
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=list(check_results.primary_key), set_={**found, "evaluated_at": CLOCK}
                )
            )

    def red(self) -> Mapping[str, Mapping[str, str]]:
        """Return what each red check says, by table, and by `<asset>: <check>`."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        order = (check_results.c.asset, check_results.c.check_name)
        for each in records(self._engine, CheckResult, check_results.c.is_red, order_by=order):
            found[each.table][f"{each.asset}: {each.check_name}"] = each.text
        return found
