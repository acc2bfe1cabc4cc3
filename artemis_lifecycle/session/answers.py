"""Questions to catalogs that may hang: all are asked at once, and one that does not answer in time holds up no other.
Without this, a server that accepts connections and then says nothing ends each tick of a sensor, and with it the work
on every other catalog's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Thread
from typing import TypeVar

from artemis_lifecycle.errors import LifecycleError, OperationsUnavailable
from artemis_lifecycle.storage.instants import elapsed

T = TypeVar("T")

ANSWERS_WITHIN = 15.0
"""Seconds for which all catalogs together are awaited. Dagster ends a tick of a sensor after 60."""


def ask_all(questions: Mapping[str, Callable[[], T]], within: float | None = None) -> dict[str, T | LifecycleError]:
    """Return what each question returns or raises, by its name; OperationsUnavailable for one without an answer in
    time. Raises what is not a LifecycleError."""
    found: dict[str, T | LifecycleError] = {}
    unexpected: list[BaseException] = []

    def ask(name: str, question: Callable[[], T]) -> None:
        try:
            found[name] = question()
        except LifecycleError as error:
            found[name] = error
        except BaseException as error:  # Raised again by the caller's thread.
            unexpected.append(error)

    # Daemons: a process does not wait at its end for a server that hangs.
    threads = [Thread(target=ask, args=each, daemon=True) for each in questions.items()]
    for thread in threads:
        thread.start()
    seconds = ANSWERS_WITHIN if within is None else within
    until = elapsed() + seconds
    for thread in threads:
        thread.join(max(0.0, until - elapsed()))
    if unexpected:
        raise unexpected[0]
    return {name: found[name] if name in found else _late(name, seconds) for name in questions}


def _late(name: str, seconds: float) -> OperationsUnavailable:
    return OperationsUnavailable(
        f"Catalog {name} does not answer within {seconds:g} s",
        untouched="its tables",
        hint="check its server, and the way to it",
    )
