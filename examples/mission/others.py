"""Tables of other formats in the demo, for `artemis demo --with`. Belongs here: which there are, where they stand, and
their part of the demo's lifecycle.yaml. Does not belong: one format's own writers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from . import paimon
from .progress import Board
from .proofs import Proof

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("paimon",)
"""What `--with` takes."""

_PAIMON = f"  others: {{{paimon.CATALOG}: {{type: paimon, warehouse: warehouse/paimon}}}}\n"


@dataclass(frozen=True)
class Written:
    """Tables of one format: their names, how many commits each had, their window in days, and the proofs after it."""

    tables: tuple[str, ...]
    commits: int
    window_days: int
    prove: Callable[[], list[Proof]]


@contextmanager
def sections(kinds: Collection[str]) -> Iterator[str]:
    """Give the lines of `catalogs` in the demo's lifecycle.yaml. What must run for them runs in the block."""
    yield _PAIMON if "paimon" in kinds else ""


def write(
    spark: SparkSession, home: Path, folder: Path, now: datetime, kinds: Collection[str], board: Board
) -> Sequence[Written]:
    """Write the tables of `kinds`, below the demo's `folder`."""
    written: list[Written] = []
    if "paimon" in kinds:
        with board.phase("Write a Paimon table"):
            history = paimon.write_history(
                spark,
                home,
                folder / "warehouse" / "paimon",
                now,
                lambda done: board.move(paimon.TABLE, done, paimon.COMMITS, "commits"),
            )
        prove = partial(paimon.prove, history)
        written.append(Written((paimon.TABLE,), paimon.COMMITS, paimon.WINDOW.days, prove))
    return written
