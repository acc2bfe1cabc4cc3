"""Is a concurrent history of reads and compare-and-swaps linearizable? By the search of Wing and Gong (1993), with
Lowe's memory of visited states (2017), as in porcupine; one table after another, since each is a register of its own
(P-compositionality).

Shares no code with what it judges: an operation is its interval, what was asked, and what was answered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "fail", "unknown"]


@dataclass(frozen=True)
class Operation:
    """A read (`expected` None), which answered `value`; or a swap from `expected` to `value`. Times are of one clock.

    `unknown`: a swap without an answer. It happens once at any time after `start`, or never. A read without an answer
    belongs in no history.
    """

    table: str
    start: float
    end: float
    value: str
    expected: str | None = None
    outcome: Outcome = "ok"

    def states_after(self, state: str) -> tuple[str, ...]:
        """The states in which the register may be afterwards; none if it could not have answered that."""
        if self.expected is None:
            return (state,) if state == self.value else ()
        if self.outcome == "unknown":
            return (self.value, state) if state == self.expected else (state,)
        if self.outcome == "ok":
            return (self.value,) if state == self.expected else ()
        return (state,) if state != self.expected else ()


def is_linearizable(history: Iterable[Operation], initial: str) -> bool:
    """Whether some order of the operations, which keeps the order of those that did not overlap, explains every answer.
    Every table begins with `initial`."""
    tables: dict[str, list[Operation]] = {}
    for operation in history:
        tables.setdefault(operation.table, []).append(operation)
    return all(_explained(operations, initial) for operations in tables.values())


def _explained(operations: Sequence[Operation], initial: str) -> bool:
    operations = sorted(operations, key=lambda each: each.start)
    ends = [math.inf if each.outcome == "unknown" else each.end for each in operations]
    everything = (1 << len(operations)) - 1
    seen: set[tuple[int, str]] = set()
    open_states = [(0, initial)]
    while open_states:
        done, state = open_states.pop()
        if done == everything:
            return True
        # The first to end among those that are left: whatever starts later comes later.
        soonest, candidates = math.inf, []
        at = (~done & (done + 1)).bit_length() - 1
        while at < len(operations) and operations[at].start <= soonest:
            if not done >> at & 1:
                soonest = min(soonest, ends[at])
                candidates.append(at)
            at += 1
        for each in candidates:
            for after in operations[each].states_after(state):
                following = done | 1 << each, after
                if following not in seen:
                    seen.add(following)
                    open_states.append(following)
    return False
