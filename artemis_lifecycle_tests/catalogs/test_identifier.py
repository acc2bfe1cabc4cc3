"""One text for one identifier, and one identifier for one text: a table is never taken for another by its name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from artemis_lifecycle.catalogs.identifier import Identifier, parse, parse_namespace
from artemis_lifecycle.errors import BadInput

# No lone surrogates: no catalog stores them, and they cannot be sent to the JVM.
_PARTS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(".` '\"\\\n日")), max_size=8)
_IDENTIFIERS = st.builds(Identifier.of, st.lists(_PARTS, min_size=2, max_size=5))


@given(_IDENTIFIERS)
@example(Identifier(("db",), "x.y"))
@example(Identifier(("db",), "back`tick"))
@example(Identifier(("",), ""))
@example(Identifier(("db",), "a...b"))
def test_a_text_is_read_back_as_the_identifier_that_it_was_written_of(identifier: Identifier) -> None:
    assert parse(str(identifier)) == identifier


@given(_IDENTIFIERS, _IDENTIFIERS)
@example(Identifier(("db", "x"), "y"), Identifier(("db",), "x.y"))
@example(Identifier(("db", "x.y"), "t"), Identifier(("db",), "x.y.t"))
def test_two_identifiers_have_two_texts_and_two_names_in_sql(one: Identifier, other: Identifier) -> None:
    assert (one == other) == (str(one) == str(other)) == (one.sql("live") == other.sql("live"))


@given(st.text(st.one_of(st.characters(), st.sampled_from(".`a ")), max_size=12))
@example("`db`.`t`")
@example("db.` t`")
def test_a_text_that_is_read_is_the_only_one_of_its_identifier(text: str) -> None:
    with suppress(BadInput):
        assert str(parse(text)) == text


@given(_PARTS.filter(lambda part: "." not in part), _PARTS, _PARTS)
def test_a_row_of_a_sql_catalog_is_read_back_as_itself(level: str, namespace: str, name: str) -> None:
    row = (f"{level}.{namespace}", name)
    assert Identifier.of_row(*row).row == row


@pytest.mark.parametrize(
    ("parts", "text", "sql"),
    [
        (("db", "t"), "db.t", "c.db.t"),
        (("a", "b", "t"), "a.b.t", "c.a.b.t"),
        (("db", "with space"), "db.with space", "c.db.`with space`"),
        (("db", "quo\"te'"), "db.quo\"te'", "c.db.`quo\"te'`"),
        (("db", "日本-ü"), "db.日本-ü", "c.db.`日本-ü`"),
        (("db", "x.y"), "db.`x.y`", "c.db.`x.y`"),
        (("d.b", "t"), "`d.b`.t", "c.`d.b`.t"),
        (("db", "back`tick"), "db.`back``tick`", "c.db.`back``tick`"),
        (("db", " edge"), "db.` edge`", "c.db.` edge`"),
        (("db", "edge\n"), "db.`edge\n`", "c.db.`edge\n`"),
        (("", "t"), "``.t", "c.``.t"),
    ],
)
def test_ordinary_names_stay_as_they_are_and_others_are_written_as_in_spark_sql(
    parts: tuple[str, ...], text: str, sql: str
) -> None:
    identifier = Identifier.of(parts)
    assert (str(identifier), identifier.sql("c"), parse(text)) == (text, sql, identifier)


@given(_IDENTIFIERS.filter(lambda identifier: "\0" not in str(identifier)))
def test_spark_reads_the_name_in_sql_as_the_same_parts(spark: SparkSession, identifier: Identifier) -> None:
    session: Any = spark._jsparkSession
    read = session.sessionState().sqlParser().parseMultipartIdentifier(identifier.sql("live"))
    assert tuple(read.apply(index) for index in range(read.size())) == ("live", *identifier.parts)


@pytest.mark.parametrize(
    "text",
    ["", ".", "t", "`t`", "db.", ".t", "db..t", "db.`t", "db.t`", "db.a`b", "db.`a`b", "db.`t`", " db.t", "db. t"],
)
def test_an_invalid_identifier_or_another_spelling_of_one_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse(text)


def test_another_spelling_is_refused_with_the_right_one() -> None:
    with pytest.raises(BadInput, match=r"write it as db\.t\."):
        parse("`db`.`t`")


def test_a_namespace_is_written_as_in_a_table() -> None:
    assert parse_namespace("a.`b.c`") == ("a", "b.c")
    for text in ("", "a.", "a..b", "`a"):
        with pytest.raises(BadInput):
            parse_namespace(text)
