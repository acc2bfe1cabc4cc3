"""Confirmation of destructive commands: if a delay is zero, there is no time to notice a mistake afterward."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from artemis_lifecycle.errors import Refused

if TYPE_CHECKING:
    from artemis_lifecycle.lifecycle import Lifecycle


def agreed(
    table: Callable[[Lifecycle], str], *, yes: bool, json: bool, dry_run: bool = False
) -> Callable[[Lifecycle], None]:
    """Return a check for `opened`: confirm on the terminal before files or history of `table` are removed, if a delay
    of its policy is zero.

    A program (`json`, no terminal) is not asked. The check raises Refused without a terminal, and Abort on no.
    """

    def ask(lifecycle: Lifecycle) -> None:
        if yes or dry_run:
            return
        name = table(lifecycle)
        zero = lifecycle.config.policy(name).zero_delays()
        if not zero or (json and not sys.stdin.isatty()):
            return
        why = "; ".join(f"{key} is 0: {what}" for key, what in zero.items())
        if not sys.stdin.isatty():
            raise Refused(
                f"Confirmation needs a terminal, and this cannot be undone: {why}",
                table=name,
                hint="set a delay in lifecycle.yaml, or confirm with --yes",
            )
        typer.confirm(f"{name}: {why}. This cannot be undone. Go on?", abort=True, err=True)

    return ask


def table_of_plan(plan: str) -> Callable[[Lifecycle], str]:
    """Return the table of a stored plan. Raises NoSuchPlan."""
    return lambda lifecycle: lifecycle.operations.plans.get(plan).table


def table_of_scan(scan: str) -> Callable[[Lifecycle], str]:
    """Return the table of a stored scan. Raises NoSuchPlan."""
    return lambda lifecycle: lifecycle.operations.scans.get(scan).table
