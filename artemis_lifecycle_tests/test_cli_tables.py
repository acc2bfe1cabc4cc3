"""Tables on a terminal of 80 columns: words stay whole, and ids are complete."""

from __future__ import annotations

import io
import json
import re
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer
from rich.console import Console

from artemis_lifecycle.cli import output
from artemis_lifecycle.cli.command import command

COSTS = ("tier", "class", "snapshots", "files", "bytes", "requests", "USD a month", "for requests", "to read it all")
PLANS = ("plan", "status", "planned at", "snapshots", "files", "bytes", "due at", "approved")


def printed(monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...], row: tuple[object, ...]) -> str:
    text = io.StringIO()
    monkeypatch.setattr(output, "out", Console(file=text, width=80))
    output.show_table("Title", columns, [row])
    return text.getvalue()


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (COSTS, ("cold", "STANDARD", 81, 257, 297_476, 514, 0.25, 0.0, 1.5)),
        (PLANS, ("121d447ada7a512d3bf7a585552c4185", "handed_off", "2026-11-24 15:58:16", 81, 112, 863_566, "", "Ada")),
    ],
    ids=["costs", "plans"],
)
def test_words_and_ids_are_whole_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...], row: tuple[object, ...]
) -> None:
    text = printed(monkeypatch, columns, row)
    assert all(len(line) <= 80 for line in text.splitlines())
    words = {word for name in columns for word in name.split()} - {"due", "at", "to", "it", "a"}
    for word in (*words, *(each for each in row if isinstance(each, str) and " " not in each)):
        assert word in text, word


def test_a_grid_has_the_fields_that_its_columns_name() -> None:
    records = [Namespace(plan_id="p", of=Namespace(table="db.t"), files=1234, due_at=None)]
    names, rows = output.grid(
        records,
        "plan=plan_id, of.table, files:,, due at=due_at:%H, {unit} a month=price",
        price=lambda each: each.files / 2,
        unit="a, b",
    )
    assert names == ["plan", "of.table", "files", "due at", "a, b a month"]
    assert rows == [["p", "db.t", "1,234", None, 617.0]]


def test_what_json_prints_reaches_the_standard_output_of_a_terminal_with_a_spinner(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer()

    @command(app, "looking at {path}", "Found in {path}")
    def look(lifecycle: object, path: str) -> object:
        return {"path": path}

    monkeypatch.setattr(output, "err", Console(stderr=True, force_terminal=True))
    monkeypatch.setattr("artemis_lifecycle.cli.command.opened", lambda *_: nullcontext())
    app(["db.t", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == {"path": "db.t"}
    app(["db.t"], standalone_mode=False)
    assert "Found in db.t" in capsys.readouterr().out


def test_each_column_of_a_command_has_a_heading() -> None:
    for each in Path(output.__file__).parent.glob("*.py"):
        nameless = re.findall(r'.*(?:", =|, =\w+[,":]|show_table\([^\n]*\(""[^\n]*).*', each.read_text())
        assert [line for line in nameless if "header=False" not in line] == [], each.name
