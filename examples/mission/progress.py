"""What the demo shows while it runs: bars on a terminal, plain lines elsewhere. Belongs here: nothing that decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_LINES = 4
"""Off a terminal, a bar says so many times how far it is."""


class Board:
    """Phases, and bars in them. Bars may be moved from several threads."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._bars: dict[str, TaskID] = {}
        self._said: dict[str, int] = {}
        self._progress: Progress | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One part of the demo, timed; its bars go when it is over."""
        began = time.monotonic()
        if self.console.is_terminal:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("[dim]{task.fields[what]}"),
            )
            with Progress(*columns, console=self.console, transient=True) as progress:
                progress.add_task(f"[bold]{name}", total=None, what="")
                self._bars, self._progress = {}, progress
                try:
                    yield
                finally:
                    self._progress = None
        else:
            self._said = {}
            self.console.print(f"{name} …")
            yield
        self.seconds[name] = time.monotonic() - began
        self.console.print(f"[green]✓[/green] {name} [dim]({self.seconds[name]:.1f} s)")

    def move(self, bar: str, done: int, total: int, what: str = "") -> None:
        """Set `bar` to `done` of `total`; `what` is being done now."""
        with self._lock:
            if self._progress is not None:
                if bar not in self._bars:
                    self._bars[bar] = self._progress.add_task(f"  {bar}", total=total, what="")
                self._progress.update(self._bars[bar], completed=done, total=total, what=what)
            elif total and (step := done * _LINES // total) > self._said.get(bar, 0):
                self._said[bar] = step
                self.console.print(f"  {bar}: {done} of {total}", highlight=False)
