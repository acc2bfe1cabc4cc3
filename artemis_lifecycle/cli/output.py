"""Output: JSON, tables, single lines, and the spinner while work is in progress."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.abc import MetaPathFinder
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from artemis_lifecycle.errors import BadInput, LifecycleError
from artemis_lifecycle.escaping import json_text, terminal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from artemis_lifecycle.api import Lifecycle


# --- serving ----------------------------------------------------------------------------------------------------------
# Serves a text over HTTP, for Prometheus to scrape, and what a container's probes ask.


def serve(
    host: str,
    port: int,
    text: Callable[[], str],
    check: Callable[[], None] = lambda: None,
    *,
    ready: Callable[[int], None] | None = None,
) -> None:
    """Answer GET /metrics with `text()`, /healthz, and /readyz with 503 while `check` raises a LifecycleError, until
    interrupted. Raises BadInput for an address that cannot be used. `ready` receives the port; for 0, it is any free
    one."""

    def checked() -> str:
        check()
        return "ok\n"

    pages: dict[str, Callable[[], str]] = {"/metrics": text, "/readyz": checked, "/healthz": lambda: "ok\n"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in pages:
                self.send_error(404)
                return
            try:
                body, status = pages[self.path]().encode(), 200
            except LifecycleError as error:
                body, status = f"{error}\n".encode(), 503
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Suppress the log line per scrape."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise BadInput(
            f"Cannot listen on {host}:{port}: {error.strerror}", hint="choose another --port or --host"
        ) from error
    with server:
        (ready or (lambda at: say(f"http://{host}:{at}/metrics")))(server.server_address[1])
        with suppress(KeyboardInterrupt):
            server.serve_forever()


out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)


def plain(text: str) -> str:
    """Return any `text` for a Rich console: escaped for the terminal, and without markup."""
    return escape(terminal(text))


def as_json(value: object) -> object:
    """Convert `value` to JSON types: dataclasses by their public fields, instants in ISO 8601, durations in seconds."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: as_json(getattr(value, field.name)) for field in fields(value) if not field.name.startswith("_")
        }
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [as_json(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def show_json(value: object) -> None:
    """Print one JSON document."""
    print(json_text(as_json(value), indent=2))


@dataclass(frozen=True)
class Result:
    """What a command found: `value` as --json prints it, then `warnings` for the standard error, and the exit code;
    `picture` returns one of it, as png or svg."""

    value: object
    exit_code: int = 0
    warnings: tuple[str, ...] = ()
    picture: Callable[[str], bytes] | None = None


def show(value: object, *, title: str, exit_code: int = 0) -> Iterator[Result]:
    """Show one result (see `command`): a two-column table of its public fields."""
    yield Result(value, exit_code)
    print_fields(value, title=title)


def print_fields(value: object, *, title: str) -> None:
    """Print the public fields of `value` as a two-column table."""
    public = as_json(value)
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, item in public.items() if isinstance(public, dict) else [("result", public)]:
        table.add_row(plain(key.replace("_", " ")), escape(_short(item)))
    _show_titled(title, table)


def _short(value: object) -> str:
    if isinstance(value, list):
        head = ", ".join(_short(item) for item in value[:8])
        return f"{head}, … ({len(value)} in all)" if len(value) > 8 else head or "none"
    if isinstance(value, dict):
        items = [f"{terminal(key)}: {_short(item)}" for key, item in list(value.items())[:8]]
        return "\n".join(items) + (f"\n… ({len(value)} in all)" if len(value) > 8 else "")
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**15 else terminal(str(value))


def say(*lines: str, dim: bool = False, unbroken: bool = False) -> None:
    """Print lines. `unbroken` ones can be copied."""
    for line in lines:
        out.print(plain(line), style="dim" if dim else None, soft_wrap=unbroken)


def readable(name: str, value: object) -> object:
    """Return a figure as people read it: sizes, durations and shares by a word of its name."""
    words = set(re.split("[_ ]", name))
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if "bytes" in words:
        return decimal(round(value)) + "/s" * ("per" in words)
    if "seconds" in words:
        return f"{value:.1f} s" if value < 60 else str(timedelta(seconds=round(value)))
    if "share" in words and "score" not in words:
        return f"{value:.1%}"
    return f"{value:.2f}" if isinstance(value, float) else value


_IDS = ("snapshot", "snapshot id", "hold", "thaw", "kind", "on", "plan", "the newest")
_LONGEST = 40
"""A longer word, such as a path, may be broken anywhere."""

_BREAKS = re.compile(r"(?<=\s)|(?<=[A-Za-z][-/_@:.,])(?=[A-Za-z])")
"""Where a line may be broken: between words, and at the marks within names, but not in numbers and dates."""


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, header: bool = True) -> None:
    """Print rows of plain values. An unknown value is empty, an instant is in UTC, several values are on separate
    lines. Ids are complete, so that they can be copied. Words stay whole: what is too wide for the console is printed
    without lines, and what is too wide for that as one block per row."""
    cells = [[cell(value) for value in row] for row in rows]
    texts = [[name, *(row[place] for row in cells)] for place, name in enumerate(map(terminal, columns))]
    natural = [max(cell_len(line) for text in column for line in text.split("\n")) for column in texts]
    least = [
        full if name in _IDS else max(_longest_word(text) for text in column)
        for name, full, column in zip(columns, natural, texts, strict=True)
    ]
    boxed, lean = 3 * len(columns) + 1, 2 * len(columns) - 2
    if header and sum(least) + lean > out.width:
        _show_titled(title, _records(columns, cells))
        return
    has_lines = not header or sum(least) + boxed <= out.width
    widths = _fitted(least, natural, out.width - (boxed if has_lines else lean))
    table = Table(show_header=header) if has_lines else Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name, width in zip(columns, widths, strict=True):
        # Rich breaks lines at spaces alone.
        table.add_column(escape(_wrapped(terminal(name), width)), overflow="fold", max_width=width)
    for row in cells:
        table.add_row(*(escape(_wrapped(text, width)) for text, width in zip(row, widths, strict=True)))
    _show_titled(title, table)


def _longest_word(text: str) -> int:
    words = (word for line in text.split("\n") for word in _BREAKS.split(line))
    return min(_LONGEST, max(cell_len(word.rstrip()) for word in words))


def _fitted(least: Sequence[int], natural: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns: at least `least`, and then what brings the widest ones closest to `natural`."""
    widths = list(least)
    for _ in range(room - sum(widths)):
        lacking = [full - width for full, width in zip(natural, widths, strict=True)]
        if max(lacking) <= 0:
            break
        widths[lacking.index(max(lacking))] += 1
    return widths


def _wrapped(text: str, width: int) -> str:
    lines = []
    for line in text.split("\n"):
        lines.append("")
        for word in _BREAKS.split(line):
            if lines[-1] and cell_len(lines[-1] + word.rstrip()) > width:
                lines.append("")
            lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def _records(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table with one block per row, of its names and known values."""
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for row in rows:
        for name, text in zip(columns, row, strict=True):
            if text:
                table.add_row(plain(name), escape(text))
        table.add_section()
    return table


def _show_titled(title: str, table: Table) -> None:
    # Rich would break the table's title at its width, and could begin a line with a name.
    if title:
        out.print(plain(title), style="italic", soft_wrap=True)
    out.print(table)


def show_list(
    found: Sequence[object], title: str, columns: str, **computed: Callable[[Any], object] | str
) -> Iterator[object]:
    """Show a list of results (see `command`): a table with the `grid` of them."""
    yield found
    show_table(title, *grid(found, columns, **computed))


def grid(
    records: Iterable[object], columns: str, **computed: Callable[[Any], object] | str
) -> tuple[list[str], list[list[object]]]:
    """Return the names and the rows of a table of records. `columns` has `name=field` for each column, separated by
    commas; the field alone where that is the name, too; and after a colon its format. A field may be one of a field
    (`dropped.table`), or one of `computed`: functions of the record, and texts for `{…}` in names."""
    texts = {key: each for key, each in computed.items() if isinstance(each, str)}
    names, fields = list[str](), list[Callable[[Any], object]]()
    for column in columns.split(", "):
        name, equals, field = column.rpartition("=")
        field, _, form = field.partition(":")
        names.append(name.format_map(texts) if equals else field.replace("_", " "))
        read = computed.get(field)
        fields.append(partial(_field, read if callable(read) else attrgetter(field), form))
    return names, [[read(record) for read in fields] for record in records]


def _field(read: Callable[[Any], object], form: str, record: object) -> object:
    value = read(record)
    return value if not form or value is None else format(value, form)


def cell(value: object) -> str:
    """Format a value for a table, escaped for the terminal; a list has one line per item."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list | tuple):
        return "\n".join(map(cell, value))
    return terminal(str(value))


def collected(frame: DataFrame, limit: int) -> list[dict[str, object]]:
    """Return at most `limit` rows, ready for JSON. Raises BadInput for errors that Spark finds in them."""
    from artemis_lifecycle.spark.java_errors import statement_errors

    with statement_errors():
        rows = frame.limit(limit).collect()
    return [{name: as_json(value) for name, value in row.asDict(recursive=True).items()} for row in rows]


def show_rows(frame: DataFrame, *, limit: int, title: str) -> Iterator[object]:
    """Show at most `limit` rows of a DataFrame (see `command`)."""
    rows = collected(frame, limit)
    yield rows
    print_rows(frame.columns, rows, limit, title)


def print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, object]], limit: int, title: str) -> None:
    """Print rows, the first `limit` of a frame."""
    # A row's own lists and structures are one line, in Python's notation.
    show_table(title, columns, [[str(item) for item in row.values()] for row in rows])
    if len(rows) == limit:
        say(f"(the first {limit}; --limit shows more)", dim=True)


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def _leave_pandas_to_who_wants_it() -> None:
    """Make pyarrow's first array without pandas. To recognize what pandas made, pyarrow would load it, which takes a
    quarter of a second; commands make nothing with it. `to_pandas` still loads it."""
    import pyarrow as pa

    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            pa.array(())
        finally:
            sys.meta_path.remove(finder)


@contextmanager
def opened(config: Path | None, doing: str) -> Iterator[Lifecycle]:
    """Yield an open Lifecycle, with a spinner on a terminal while it opens. Records what was interrupted."""
    from artemis_lifecycle.api import Lifecycle

    _leave_pandas_to_who_wants_it()
    with ExitStack() as stack:
        with spinner(doing):
            lifecycle = stack.enter_context(Lifecycle.open(config, owner="artemis"))
        try:
            yield lifecycle
        except KeyboardInterrupt:
            interrupted.append(lifecycle.resources.under_way or doing)
            raise


interrupted: list[str] = []
"""What was under way when the process was interrupted."""

_SIGNS = {"ok": "[green]✓[/]", "warning": "[yellow]! warning[/]", "failed": "[red]✗ failed[/]", "skipped": "- skipped"}


def say_check(status: str, name: str, detail: str, fix: str) -> None:
    """Print a check and its result, in green or red; below it how to fix it. Lines can be copied."""
    out.print(f"{_SIGNS[status]} [bold]{plain(name)}[/]: {plain(detail)}", soft_wrap=True)
    if fix:
        out.print(f"    → {plain(fix)}", soft_wrap=True)


def spinner(doing: str) -> AbstractContextManager[object]:
    """Return a spinner on a terminal that shows the activity."""
    return err.status(plain(doing)) if err.is_terminal else nullcontext()
