"""Each published figure has the command that gives it; a run of them keeps what it printed and goes on where it was."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import records
from bench.published import PARTS, Part
from bench.records import DOCS, REPOSITORY, main, marked

PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]
FIGURE = re.compile(r"\d\s?(s|ms|µs|MB|GB|TB|min|×|bytes)(?!\w)")
HEAD = re.compile(r"\b(seconds|time|memory|MB|ratio)\b")


def _tables(page: Path) -> Iterator[tuple[str, str, str]]:
    """Of each table: what stands above it, its head, and its rows."""
    blocks = re.split(r"\n\s*\n", page.read_text())
    for above, block in zip(("", *blocks), blocks, strict=False):
        lines = [line.strip() for line in block.splitlines()]
        if len(lines) > 2 and lines[0].startswith("|") and re.fullmatch(r"\|[-|: ]+\|", lines[1]):
            yield above.strip(), lines[0], "\n".join(lines[2:])


def test_each_table_of_figures_names_the_parts_that_give_it() -> None:
    tables = [(page.name, *table) for page in PAGES for table in _tables(page)]
    figures = [(page, head, above) for page, above, head, rows in tables if FIGURE.search(rows) or HEAD.search(head)]
    assert len(figures) > 40
    assert [(page, head) for page, head, above in figures if not re.fullmatch(r"<!-- record: [^>]+ -->", above)] == []


def test_markers_and_parts_are_the_same_and_a_table_without_a_part_says_why() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    shown = text.replace("`<!-- record: PART -->`", "")
    assert marked(shown) == set(PARTS)
    assert all(re.match(r"none, \w+", each) for each in re.findall(r"<!-- record: (none[^>]*) -->", shown))


def test_the_page_of_performance_stays_at_two_pages() -> None:
    assert len((DOCS / "performance.md").read_text().splitlines()) <= 140


@pytest.mark.parametrize("name", PARTS)
def test_each_command_is_a_bench_that_knows_its_options(name: str) -> None:
    for command in PARTS[name].commands:
        found = re.search(r"python -m bench(?:\.(\w+))?", command)
        if found is None:
            assert command.split()[0] in ("artemis", "make", "docker")
            continue
        source = (REPOSITORY / "bench" / f"{found[1] or '__main__'}.py").read_text()
        assert [option for option in re.findall(r"--[a-z-]+", command) if f'"{option}"' not in source] == []


def test_an_unknown_part_is_an_error_that_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["moon"]) == 2
    said = capsys.readouterr().err
    assert [name for name in PARTS if f"\n  {name} " not in said] == []


def test_a_run_keeps_what_commands_print_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = """python -c 'import sys; print([1, 2]); print("log", file=sys.stderr)'"""
    commands = (said, "ls {work}/there", "python -c 'print(dict(seven=7))'")
    monkeypatch.setitem(PARTS, "one", Part("what is tried", 1, commands, "the peer at --its best"))
    monkeypatch.setitem(PARTS, "two", Part("what cannot run", 1, ("python -c 1",), needs="no-such-program"))
    parts = ["one", "two", "--home", str(tmp_path)]
    assert main([*parts, "--minutes", "0"]) == 1
    assert "one 1: not begun, the minutes are over" in capsys.readouterr().out

    assert main(parts) == 1
    printed = capsys.readouterr().out
    assert "one 2: exit code" in printed and "two 1: not run, it needs no-such-program" in printed
    (folder,) = (tmp_path / "records").iterdir()
    assert json.loads((folder / "one" / "1.out").read_text()) == [1, 2]
    assert (folder / "one" / "1.err").read_text() == "log\n"

    (tmp_path / "bench" / "one" / "there").touch()
    assert main(["one", "--home", str(tmp_path)]) == 0
    attempts = [json.loads(line) for line in (folder / "one" / "record.jsonl").read_text().splitlines()]
    assert [(each["number"], each["code"] == 0) for each in attempts] == [(1, True), (2, False), (3, True), (2, True)]
    assert {"load", "machine", "peer", "seconds"} <= attempts[0].keys()
    page = (folder / "results.md").read_text()
    assert (
        "The peer: the peer at --its best." in page and "```text\n{'seven': 7}\n```" in page and "It failed" not in page
    )
    assert "| figure | 1 |" in page and "what cannot run" not in page


def test_a_try_with_arguments_has_a_folder_of_its_own_and_never_reaches_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARTS, "one", Part("what is tried", 1, ("echo",)))
    home = ["--home", str(tmp_path)]
    with pytest.raises(SystemExit):
        main(["one", "--write", *home, "--", "small"])
    for more in ([], ["--", "small"], ["--", "smaller"]):
        assert main(["one", *home, *more]) == 0
    full, small = sorted((tmp_path / "records").iterdir(), key=lambda each: len(each.name))
    assert small.name == f"{full.name}-try"
    assert [each["more"] for each in records.attempts(small, "one")] == [["small"], ["smaller"]]


def test_what_ran_is_written_between_the_markers_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("performance-records.md", "performance-methods.md"):
        (tmp_path / name).write_text((DOCS / name).read_text())
    before = (tmp_path / "performance-records.md").read_text()
    monkeypatch.setattr(records, "PAGE", tmp_path / "performance-records.md")
    monkeypatch.setitem(PARTS, "one", Part("what is tried", 1, ("echo",)))
    assert main(["one", "--home", str(tmp_path), "--write"]) == 0
    after = (tmp_path / "performance-records.md").read_text()
    assert re.search(r"\n\| one 1 \| 20\S+ \|", after) and "No run of all parts" not in after
    cut = re.compile(f"(?s){re.escape(records.BEGIN)}.*{re.escape(records.END)}")
    assert cut.sub("", after) == cut.sub("", before)
