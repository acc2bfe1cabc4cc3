"""Tokens of Spark SQL: what stands in a string, a quoted name or a comment is never a word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.spark.sql import literal, name, tokens, value_of


def words(sql: str) -> list[str]:
    return [token.text for token in tokens(sql) if token.kind == "word"]


@pytest.mark.parametrize(
    "hidden",
    [
        "'FOR TAG'",
        "'it''s FOR TAG'",
        r"'it\'s FOR TAG'",
        '"FOR TAG"',
        r'"a \" FOR TAG"',
        r"r'FOR TAG \'",
        "`FOR TAG`",
        "`a``FOR TAG`",
        "-- FOR TAG\n",
        "-- FOR \\\n TAG\n",
        "/* FOR TAG */",
        "/* a /* FOR */ TAG */",
        "/* FOR ' TAG */",
        "/**/ '/* FOR TAG' /* */",
    ],
)
def test_quoted_or_commented_text_is_not_a_word(hidden: str) -> None:
    assert words(f"SELECT {hidden} x") == ["SELECT", "x"]


def test_tokens_have_their_positions() -> None:
    sql = "TAG snapshot 4729 AS 'a''b' /* c */ WITH 90d; -- end"
    assert [(token.kind, token.text) for token in tokens(sql)] == [
        ("word", "TAG"),
        ("word", "snapshot"),
        ("number", "4729"),
        ("word", "AS"),
        ("string", "'a''b'"),
        ("word", "WITH"),
        ("word", "90d"),
        ("symbol", ";"),
    ]
    assert all(sql[token.start : token.end] == token.text for token in tokens(sql))


def test_a_hint_is_not_a_comment() -> None:
    assert words("SELECT /*+ COALESCE(1) */ x") == ["SELECT", "COALESCE", "x"]


@pytest.mark.parametrize(
    "sql", ["SELECT 'a", 'SELECT "a', "SELECT `a", "SELECT /* a", "SELECT /* /* */", r"SELECT 'a\'"]
)
def test_what_does_not_end_is_named_with_its_place(sql: str) -> None:
    with pytest.raises(BadInput, match="line 1, column 8 does not end"):
        tokens(sql)


@pytest.mark.parametrize(
    ("spelled", "says"),
    [("'a''b'", "a'b"), (r"'a\'b\\'", "a'b\\"), ('"a""b"', 'a"b'), (r"r'a\b'", r"a\b"), ("`a``b`", "a`b")],
)
def test_a_string_says_what_spark_reads_in_it(spelled: str, says: str) -> None:
    (token,) = tokens(spelled)
    assert value_of(token) == says


def test_an_escape_that_no_name_has_is_refused() -> None:
    (token,) = tokens(r"'a\n'")
    with pytest.raises(BadInput, match="escape"):
        value_of(token)


@given(st.text())
def test_a_literal_and_a_quoted_name_read_back(text: str) -> None:
    (token,) = tokens(literal(text))
    assert value_of(token) == text
    parts = tokens(name(text, "plain"))
    if parts[0].kind == "quoted":
        assert value_of(parts[0]) == text
    else:
        assert parts[0].text == text


@given(st.text(alphabet="aFORTG'\"`/*+-\\\n ;.1"))
def test_any_text_is_split_into_tokens_or_the_error_has_the_position(text: str) -> None:
    try:
        found = tokens(text)
    except BadInput:
        # Then a quote or a comment was opened.
        assert set(text) & set("'\"`/")
        return
    ends = 0
    for token in found:
        assert token.start >= ends and text[token.start : token.end] == token.text
        ends = token.end
