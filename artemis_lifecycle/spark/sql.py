"""Tokens of Spark SQL, split as Spark's lexer does, so that text in a string, a quoted name or a comment is never read
as a keyword. Pure. Source: Spark's SqlBaseLexer.g4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from artemis_lifecycle.errors import BadInput


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `text` is its source, from `start` up to `end` in the statement."""

    kind: Literal["word", "number", "string", "quoted", "symbol"]
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Return True if the token is one of `words`, ignoring case; a quoted name never is."""
        return self.kind == "word" and self.text.upper() in words


# Each alternative is one rule of the lexer. Bracketed comments nest, so only their start is matched here.
_TOKEN = re.compile(
    r"""
      (?P<space>\s+|--(?:\\\n|[^\r\n])*)
    | (?P<comment>/\*(?!\+))
    | (?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<number>\d+(?!\w))
    | (?P<word>\w+)
    | (?P<open>['"`])
    | (?P<symbol>/\*\+|\*/|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*(?!\+)|\*/")

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def tokens(sql: str) -> list[Token]:
    """Return the tokens of `sql` without space and comments. Raises BadInput for an unclosed string, name, comment."""
    found: list[Token] = []
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        assert match is not None  # the last alternative takes any character
        kind = match.lastgroup
        if kind == "open":
            raise _unclosed(sql, at, {"'": "string", '"': "string", "`": "quoted name"}[sql[at]])
        if kind == "comment":
            at = _after_comment(sql, at)
            continue
        if kind in ("word", "number", "string", "quoted", "symbol"):
            found.append(Token(kind, match[0], at, match.end()))  # type: ignore[arg-type]
        at = match.end()
    return found


def _after_comment(sql: str, start: int) -> int:
    depth, at = 0, start
    while True:
        edge = _COMMENT_EDGE.search(sql, at)
        if edge is None:
            raise _unclosed(sql, start, "comment")
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
        if depth == 0:
            return at


def _unclosed(sql: str, at: int, what: str) -> BadInput:
    line, column = sql.count("\n", 0, at) + 1, at - (sql.rfind("\n", 0, at) + 1) + 1
    return BadInput(f"The {what} that begins at line {line}, column {column} does not end", hint=f"close the {what}")


def value_of(token: Token) -> str:
    """Return the value of a string or a quoted name. Raises BadInput for escapes but of quotes and backslashes."""
    text = token.text
    if token.kind == "quoted":
        return text[1:-1].replace("``", "`")
    if text[0] in "rR":
        return text[2:-1]
    quote = text[0]
    parts: list[str] = []
    rest = iter(text[1:-1])
    for character in rest:
        if character == "\\":
            character = next(rest)
            if character not in ("'", '"', "\\"):
                raise BadInput(
                    f"{text} has an escape that a name cannot have: \\{character}", hint="write the character itself"
                )
        elif character == quote:
            next(rest)  # doubled, or the lexer would have ended the string here
        parts.append(character)
    return "".join(parts)


def name(*parts: str) -> str:
    """Return `parts` as one name, each quoted if necessary."""
    return ".".join(part if _PLAIN_NAME.fullmatch(part) else "`" + part.replace("`", "``") + "`" for part in parts)


def literal(text: str) -> str:
    """Return `text` as a string literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
