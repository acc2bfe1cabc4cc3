"""Tables of other formats in the demo, for `artemis demo --with`. Belongs here: which there are, where they stand, and
their part of the demo's lifecycle.yaml. Does not belong: one format's own writers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from artemis_lifecycle.api import Lifecycle

from . import nessie, paimon
from .nessie_server import nessie_server
from .progress import Board
from .proofs import Proof

KINDS = ("nessie", "paimon")
"""What `--with` takes."""

_PAIMON = f"    {paimon.CATALOG}: {{type: paimon, warehouse: warehouse/paimon}}\n"
_NESSIE = f"    {nessie.CATALOG}: {{{{type: nessie, uri: '{{}}', warehouse: warehouse/nessie}}}}\n"


@dataclass(frozen=True)
class Written:
    """Tables of one format: their names, how many commits they had, their window, and the proofs after the walk."""

    tables: tuple[str, ...]
    commits: int
    window: str
    prove: Callable[[], list[Proof]]


@dataclass(frozen=True)
class Served:
    """What runs for the tables: the address of Nessie's API, if it does; and their lines in `catalogs`."""

    api: str | None
    lines: str


@contextmanager
def served(home: Path, kinds: Collection[str]) -> Iterator[Served]:
    """Start what the tables of `kinds` need, for the time of the block."""
    with ExitStack() as stack:
        api, lines = None, ""
        if "nessie" in kinds:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="nessie-")))
            api = stack.enter_context(nessie_server(home, folder)).api
            lines += _NESSIE.format(api)
        if "paimon" in kinds:
            lines += _PAIMON
        yield Served(api, f"  others:\n{lines}" if lines else "")


def write(
    lifecycle: Lifecycle, folder: Path, now: datetime, kinds: Collection[str], served: Served, board: Board
) -> Sequence[Written]:
    """Write the tables of `kinds`, below the demo's `folder`."""
    spark, home, written = lifecycle.spark, lifecycle.config.home, list[Written]()
    if served.api is not None:
        with board.phase("Write tables on Nessie's branches"):
            branches = nessie.write_history(
                spark,
                served.api,
                folder / "warehouse" / "nessie",
                now,
                lambda done: board.move(nessie.CATALOG, done, nessie.COMMITS, "commits"),
            )
            # What is live on all branches: the walk cleans by it.
            lifecycle.mark(nessie.CATALOG)
        written.append(Written(nessie.TABLES, nessie.COMMITS, "all", partial(nessie.prove, branches)))
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
        window = f"{paimon.WINDOW.days} d"
        written.append(Written((paimon.TABLE,), paimon.COMMITS, window, prove))
    return written
