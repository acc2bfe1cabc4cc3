"""The two lists that the machine draws from: what others do, and the steps of the lifecycle; and its dice."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from artemis_lifecycle_tests.foreign.actors import Actors
    from artemis_lifecycle_tests.foreign.world import World

T = TypeVar("T")


class CannotNowError(Exception):
    """The world is not so that an action has something to do."""


class Draw:
    """The dice of one turn. `said`: what they fell on, for the history. Turns have dice of their own, so that a turn
    that is left out changes no other."""

    def __init__(self, *seed: object) -> None:
        self._chance = random.Random("/".join(map(str, seed)))
        self.said: list[str] = []
        self.focus: str | None = None
        """The table that something is being done to: who comes between, comes to that one more often."""

    def one(self, of: Sequence[T], *, silent: bool = False) -> T:
        if not of:
            raise CannotNowError("nothing to draw from")
        # Always one roll of the same die, whatever there is to draw from.
        found = of[self._chance.randrange(5040) % len(of)]
        if not silent:
            self.said.append(str(found))
        return found

    def chance(self, of: float, what: str = "") -> bool:
        found = self._chance.random() < of
        if found and what:
            self.said.append(what)
        return found

    def number(self, below: int) -> int:
        return self._chance.randrange(below)

    def weighted(self, weights: dict[str, float]) -> str:
        return self._chance.choices(list(weights), list(weights.values()))[0]

    def dies(self) -> int | None:
        """At which of the places between two writes the worker of a step dies, if it does."""
        return self._chance.randrange(41) if self._chance.random() < 0.3 else None

    def clock(self) -> int:
        """By how many days Postgres' clock is wrong during a step."""
        found = self._chance.choice([0] * 22 + [40, -40])
        if found:
            self.said.append(f"clock {found:+}")
        return found


@dataclass(frozen=True)
class Foreign:
    work: Callable[[World, Draw], None]
    weight: float
    destroys: bool
    """It may take away what nobody has looked at yet: the model looks first."""


@dataclass(frozen=True)
class Step:
    work: Callable[[Actors, Draw], None]
    weight: float


FOREIGN: dict[str, Foreign] = {}
STEPS: dict[str, Step] = {}


def foreign(
    weight: float = 1, *, destroys: bool = False
) -> Callable[[Callable[[World, Draw], None]], Callable[[World, Draw], None]]:
    """Something that others do, so often."""

    def add(work: Callable[[World, Draw], None]) -> Callable[[World, Draw], None]:
        FOREIGN[work.__name__] = Foreign(work, weight, destroys)
        return work

    return add


def product(
    weight: float = 1,
) -> Callable[[Callable[[Actors, Draw], None]], Callable[[Actors, Draw], None]]:
    """A step of the lifecycle, or several, so often."""

    def add(work: Callable[[Actors, Draw], None]) -> Callable[[Actors, Draw], None]:
        STEPS[work.__name__] = Step(work, weight)
        return work

    return add
