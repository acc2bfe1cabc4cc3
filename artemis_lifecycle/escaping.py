"""Text that others wrote, made harmless for where it is shown. Belongs here: one function per output. Does not belong:
what is stored or compared, which stays as it is.

Names of tables, refs, paths and writers, and whatever people give as `who` and `why`, may have terminal sequences, line
breaks, characters that reorder or hide the text around them, and halves of surrogate pairs from file names that are no
UTF-8. Each such character is shown as its escape (`\\x1b`, `\\u202e`), so that a name can still be read and copied.
"""

from __future__ import annotations

import html as _html
import json
import logging
import re
import unicodedata
from collections.abc import Callable
from urllib.parse import quote, unquote

# Controls (also those above ASCII), formats (directions, zero widths, tags), surrogates, line and paragraph separators.
_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
# Letters and marks of other categories that take no place: fillers, joiners, variation selectors.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_NOT_PLAIN = re.compile("[^ -~]")
_MARKDOWN = re.compile(r"[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_WORD = re.compile(r"\S+")
# What readers of plain text make links of by themselves: addresses, hosts of common domains, mail. Code is left alone.
_LINK = re.compile(
    r"\b(?:https?|ftp)://|\bwww\.|\b(?:mailto|xmpp|tel):|[\w.+-]@[\w-]+\."
    r"|[\w-]\.(?:[a-z]{2}|biz|com|edu|gov|info|net|org|pro|web|aero|asia|coop|museum|name|shop)(?![\w.-])",
    re.IGNORECASE,
)
# And what chats make of a word: mentions, any address, emphasis, code, emoji.
_CHAT = re.compile(rf"{_LINK.pattern}|@|://|`|:[\w+-]+:|(?<!\w)[*_~]|[*_~](?!\w)", re.IGNORECASE)
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def terminal(text: str) -> str:
    """`text` for a terminal, a log, or any other place that shows plain text: one line, and only what is visible."""
    return _NOT_PLAIN.sub(lambda match: _visible(match[0]) if _is_harmful(match[0]) else match[0], text)


def markdown(text: str, *, code: bool = False) -> str:
    """`text` within a line or a table's cell of Markdown, as plain text: no markup, no HTML. `code`: as a code span,
    which shows names and paths as they are, outside of tables."""
    text = terminal(text)
    if not code:
        return _WORD.sub(lambda word: _markdown_word(word[0]), text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _markdown_word(word: str) -> str:
    if _LINK.search(word):
        # In a cell of a table, a bar in code still ends the cell.
        return markdown(word.replace("|", "\\|"), code=True)
    return _MARKDOWN.sub(lambda match: f"\\{match[0]}", word).translate(_ENTITIES)


def chat(text: str) -> str:
    """`text` for Slack, and what reads its form: no mention, link, emphasis or emoji. A word that would be one is shown
    as code."""

    def shown(word: re.Match[str]) -> str:
        return "`" + word[0].replace("`", "'") + "`" if _CHAT.search(word[0]) else word[0]

    return _WORD.sub(shown, terminal(text)).translate(_ENTITIES)


def html(text: str) -> str:
    """`text` within an element or a quoted attribute of HTML or SVG."""
    return _html.escape(terminal(text), quote=True)


def json_text(value: object, *, indent: int, default: Callable[[object], object] | None = None) -> str:
    """`value` as a JSON document that is safe to print. Reads back as `value`, half surrogate pairs included."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=default)
    # Line breaks are the document's own: those of texts are escaped already.
    return _NOT_PLAIN.sub(
        lambda match: json.dumps(match[0])[1:-1] if match[0] != "\n" and _is_harmful(match[0]) else match[0], text
    )


def logger(name: str) -> logging.Logger:
    """The logger of a module, whose lines are as `terminal` says, whatever handlers the process has."""
    found = logging.getLogger(name)
    found.addFilter(_escape_record)
    return found


def _escape_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = terminal(record.getMessage()), None
    return True


def _is_harmful(character: str) -> bool:
    return unicodedata.category(character) in _CATEGORIES or _INVISIBLE.match(character) is not None


def _visible(character: str) -> str:
    code = ord(character)
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


_ENCODED = "encoded:"
_RESERVED = re.compile(r'\.\.\.|[,\[\]"]')
"""What has a meaning in the UI's text for partitions: ranges (Dagster rejects such keys), lists and quoted keys."""


def partition_key(table: str) -> str:
    """Return the partition key of a table: its identifier, percent-encoded where Dagster would reject it or its UI
    could not select it, or where the name would reorder or hide the text around it in the UI and in logs."""
    if not _RESERVED.search(table) and terminal(table) == table and not table.startswith(_ENCODED):
        return table
    escaped = _RESERVED.sub(lambda found: "".join(f"%{ord(each):02X}" for each in found[0]), table.replace("%", "%25"))
    return _ENCODED + "".join(
        each if terminal(each) == each else quote(each, errors="surrogatepass") for each in escaped
    )


def table_of(key: str) -> str:
    """Return the table whose partition has that key."""
    return unquote(key.removeprefix(_ENCODED), errors="surrogatepass") if key.startswith(_ENCODED) else key
