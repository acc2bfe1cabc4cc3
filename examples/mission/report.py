"""The demo's report: what the walk did to each table, how long each step took, and what was proven. Plain values in,
Rich out. Belongs here: layout. Does not belong: counting, or judging.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.cli.output import plain

from .proofs import Proof


@dataclass(frozen=True)
class TierReport:
    """What one tier holds of a table. Sizes in bytes."""

    tier: str
    snapshots: int
    size_in_bytes: int


@dataclass(frozen=True)
class Answer:
    """One question, put to a snapshot of one tier: how many rows it counted, what was expected of the tier, and what it
    took, in seconds. `waited` says what had to be done before."""

    table: str
    tier: str
    storage_class: str
    snapshot_id: int
    rows: int
    expected_seconds: float
    seconds: float
    waited: str = ""


@dataclass(frozen=True)
class TableReport:
    """One table's walk. Sizes in bytes; `step_seconds` by asset, in the order in which they ran."""

    table: str
    kind: str
    window: str
    commits: int
    snapshots_kept: int
    snapshots_expired: int
    refs_expired: int
    files_deleted: int
    bytes_deleted: int
    files_copied: int
    bytes_copied: int
    orphans_removed: int
    orphan_bytes: int
    files_left_in_flight: int
    checks_passed: int
    checks_failed: tuple[str, ...]
    failures: tuple[str, ...]
    step_seconds: Mapping[str, float]
    tiers: tuple[TierReport, ...] = ()


@dataclass(frozen=True)
class DemoReport:
    """The whole demo: tables, proofs, the seconds of each phase, and an answer of each tier."""

    tables: tuple[TableReport, ...]
    proofs: tuple[Proof, ...]
    phase_seconds: Mapping[str, float]
    answers: tuple[Answer, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """Everything that went wrong, in words: steps, checks and proofs."""
        return tuple(
            [f"{table.table}: {failure}" for table in self.tables for failure in table.failures]
            + [f"{table.table}: check {check} is red" for table in self.tables for check in table.checks_failed]
            + [f"{proof.table}: {proof.claim}: {proof.detail}" for proof in self.proofs if not proof.holds]
        )


def size(count: int) -> str:
    """Bytes as people read them: 1.5 MB, in steps of 1000."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def render(report: DemoReport) -> RenderableType:
    """The report, for any console."""
    parts: list[RenderableType] = [_walk(report.tables), _times(report.tables)]
    if report.answers:
        parts.append(_answers(report.answers))
    parts.append(_proofs(report.proofs))
    total = sum(report.phase_seconds.values())
    phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.phase_seconds.items())
    parts.append(Text(f"{total:.0f} s in all: {phases}", style="dim"))
    if report.failures:
        lines = "\n".join(f"✗ {plain(failure)}" for failure in report.failures)
        parts.append(Panel(lines, title="The demo failed", border_style="red", title_align="left"))
    else:
        sentence = f"All {len(report.proofs)} proofs hold, and every check of the walk is green."
        parts.append(Panel(sentence, border_style="green"))
    return Group(*parts)


def show(report: DemoReport, console: Console) -> None:
    """Print the report."""
    console.print()
    console.print(render(report))


def _walk(tables: Sequence[TableReport]) -> Table:
    made = _grid("What the walk did", tables)
    made.add_row("kind", *(table.kind for table in tables))
    made.add_row("window, commits", *(f"{table.window}, {table.commits:,}" for table in tables))
    made.add_row("snapshots kept", *(f"{table.snapshots_kept:,}" for table in tables))
    made.add_row("snapshots expired", *(f"{table.snapshots_expired:,}" for table in tables))
    made.add_row("refs expired", *(f"{table.refs_expired:,}" for table in tables))
    made.add_row("files copied to cold", *(_files(table.files_copied, table.bytes_copied) for table in tables))
    made.add_row("files deleted", *(_files(table.files_deleted, table.bytes_deleted) for table in tables))
    made.add_row("orphans removed", *(_files(table.orphans_removed, table.orphan_bytes) for table in tables))
    made.add_row("files in flight, left", *(_files(table.files_left_in_flight) for table in tables))
    made.add_row("checks", *(_checks(table) for table in tables))
    made.add_section()
    for tier in dict.fromkeys(held.tier for table in tables for held in table.tiers):
        made.add_row(
            f"in the {tier} tier" if tier != "deep-archive" else "in the deep archive",
            *(next((_held(held) for held in table.tiers if held.tier == tier), "") for table in tables),
        )
    return made


def _held(held: TierReport) -> str:
    return f"{held.snapshots:,} ({size(held.size_in_bytes)})" if held.snapshots else "0"


def _answers(answers: Sequence[Answer]) -> Table:
    title = f"One question to each tier: SELECT count(*) FROM {_name(answers[0].table)} FOR VERSION AS OF …"
    made = Table(title=plain(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for name in ("tier", "snapshot"):
        made.add_column(name, no_wrap=True)
    for name in ("rows", "expected", "took"):
        made.add_column(name, justify="right")
    made.add_column("before that")
    for answer in answers:
        made.add_row(
            plain(answer.tier),
            str(answer.snapshot_id),
            f"{answer.rows:,}",
            f"{answer.expected_seconds:.0f} s",
            f"{answer.seconds:.1f} s",
            plain(answer.waited),
        )
    return made


def _times(tables: Sequence[TableReport]) -> Table:
    made = _grid("Seconds per step", tables)
    for step in _steps(tables):
        made.add_row(step, *(_seconds(table.step_seconds.get(step)) for table in tables))
    made.add_section()
    made.add_row("all", *(_seconds(sum(table.step_seconds.values())) for table in tables), style="bold")
    return made


def _proofs(proofs: Sequence[Proof]) -> Table:
    made = Table(title="Proofs, computed", title_justify="left", title_style="bold", box=SIMPLE_HEAD, expand=True)
    made.show_header = False
    made.add_column("mark")
    made.add_column("claim", ratio=1)
    made.add_column("found", ratio=1, style="dim")
    for table in dict.fromkeys(proof.table for proof in proofs):
        made.add_section()
        made.add_row("", f"[bold]{plain(_name(table))}[/bold]", "")
        for proof in proofs:
            if proof.table == table:
                mark = "[green]✓[/green]" if proof.holds else "[bold red]✗[/bold red]"
                made.add_row(mark, plain(proof.claim), plain(proof.detail))
    return made


def _grid(title: str, tables: Sequence[TableReport]) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    made.add_column("", no_wrap=True)
    for table in tables:
        made.add_column(plain(_name(table.table)), justify="right")
    return made


def _name(table: str) -> str:
    """Without its namespace, and in words that a narrow column can break."""
    return parse(table).name.replace("_", " ")


def _files(count: int, size_in_bytes: int | None = None) -> str:
    return f"{count:,}" if size_in_bytes is None or not count else f"{count:,} ({size(size_in_bytes)})"


def _checks(table: TableReport) -> str:
    green = f"[green]{table.checks_passed} green[/green]"
    return f"{green}, [red]{len(table.checks_failed)} red[/red]" if table.checks_failed else green


def _steps(tables: Sequence[TableReport]) -> Iterator[str]:
    seen: dict[str, None] = {}
    for table in tables:
        seen |= dict.fromkeys(table.step_seconds)
    yield from seen


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
