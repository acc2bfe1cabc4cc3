"""The gate's rules in the database say what the rules in Python say: of every summary, requirement and table name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sqlalchemy import Connection, text

from artemis_lifecycle.catalogs.gate.installation import install_gate, remove_gate, require_patterns
from artemis_lifecycle.catalogs.gate.rules import GatedRow, Rule, as_json, mode_of, rules_of
from artemis_lifecycle.catalogs.gate.statements import SCHEMA
from artemis_lifecycle.catalogs.identifier import Identifier
from artemis_lifecycle.catalogs.sql import ensure_tables
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import Lineage, OverwritePermissions
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.contracts.summary import KEYS, OPERATION, OPERATIONS
from artemis_lifecycle.errors import ConfigError
from artemis_lifecycle.operations.database import connect


@pytest.fixture(scope="module")
def connection(postgres_uri: str) -> Iterator[Connection]:
    engine = connect(postgres_uri)
    ensure_tables(engine)
    install_gate(engine, "live", ())
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as opened:
        yield opened
    remove_gate(engine, "live")
    engine.dispose()


# --- problems ---------------------------------------------------------------------------------------------------------

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_counts = st.sampled_from(
    ["0", "12", "007", str(2**63 - 1), str(2**63), "-1", "1.5", "١٢", "9" * 18, "1" * 19, "1 , 2", "[1, 2]", '["1" ,2]']
) | st.sampled_from(
    ['{"db.t": [1]}', '{"db.t" : [1, "2"], "o:a.b": []}', '{"db.t": 1}', "[1", "[]", "{}", "1,,2", "[" + "1," * 40_000]
)
_values = st.one_of(
    _texts,
    _counts,
    st.sampled_from(
        [*OPERATIONS, "schedule", "manual", "incident-response", "replay", "APPEND", "writer", "ARTEMIS-3"]
    ),
    st.sampled_from(
        ["a1b2c3d", "main", "A" * 64, "a" * 65, " a1b2c3d ", "\ta1b2c3d", "\u2028", "é" * 1024, "é" * 1025]
    ),
    st.sampled_from(
        ["", " ", "\x00", "a\x00b", "\x7f", "\x80", "'", '"', "\\", "𝔸" * 81, "$$", "%s", ":a", "x" * 65_536]
    ),
)
_atoms = st.one_of(
    st.sampled_from(
        ["a", "b", "-", " ", "é", "𝔸", ".", r"\.", r"\-", r"\\", r"\[", r"\{", r"\'", "[a-c]", "[^a-c]", "[]a]"]
    )
    | st.sampled_from(["[^]a]", "[a-]", r"[\]a]", r"[\-a]", "[a^]", "[$.]", "(?:a|b)", "(a|)", "()", "[é-ü]", "'"])
)
_pieces = st.builds(str.__add__, _atoms, st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{0,3}", "{1,}"]))
_patterns = st.lists(st.lists(_pieces, max_size=4).map("".join), min_size=1, max_size=3).map("|".join)
_keys = st.sampled_from([*KEYS, OPERATION, "custom.key", "é"])


@st.composite
def _lineages(draw: st.DrawFn) -> Lineage:
    names = st.lists(_keys, max_size=4, unique=True).map(tuple)
    operations = st.lists(st.sampled_from(OPERATIONS), max_size=4, unique=True).map(tuple)
    people = st.lists(_values.filter(lambda each: "\0" not in each), max_size=3).map(tuple)
    triggers = st.sampled_from(["schedule", "manual", "replay", "whim", "'"])
    try:
        return Lineage(
            required=draw(names),
            operations=draw(operations),
            triggers=draw(st.dictionaries(triggers, names, max_size=3)),
            patterns=draw(st.dictionaries(_keys, _patterns | st.just(".{1,200}"), max_size=3)),
            overwrite=OverwritePermissions(
                operations=draw(operations), needs=draw(names), writers=draw(people), operators=draw(people)
            ),
        )
    except ValidationError:
        assume(False)
        raise


def _by_the_database(connection: Connection, summary: dict[str, str], requirements: str) -> tuple[str, ...]:
    query = text(f"SELECT {SCHEMA}.problems(CAST(:summary AS JSONB) -> 0, CAST(:requirements AS JSONB))")
    return tuple(connection.execute(query, {"summary": as_json([summary]), "requirements": requirements}).scalar_one())


@pytest.mark.slow
@settings(max_examples=400)
@given(summary=st.dictionaries(_keys, _values, max_size=8), lineage=_lineages())
@example(summary={}, lineage=Lineage())
@example(summary={"operation": "replace", "trigger.type": "whim", "writer.id": "a\nb"}, lineage=Lineage())
def test_the_database_finds_the_same_problems_in_the_same_words(
    connection: Connection, summary: dict[str, str], lineage: Lineage
) -> None:
    requirements = LineageRequirements.from_config(lineage)
    # Postgres stores no character 0; of what replaces it the rules say the same, and show it.
    shown = tuple(each.replace("\0", "\1") for each in lineage_problems(summary, requirements))
    assert _by_the_database(connection, summary, requirements.as_json()) == shown


@pytest.mark.seconds
@pytest.mark.filterwarnings("ignore:Possible (nested set|set difference):FutureWarning")
@settings(max_examples=400)
@given(
    pattern=st.text("ab.[]{},|()*+?-\\:!0129é", max_size=8) | _patterns,
    values=st.lists(st.text("ab{},-\\0é.[]:", min_size=1, max_size=4), min_size=1, max_size=6),
    data=st.data(),
)
@example(pattern="a{,3}", values=["aa", "a{,3}"], data=None)
@example(pattern="a{2", values=["a{2"], data=None)
@example(pattern="[a-c-e]", values=["-", "d"], data=None)
def test_a_pattern_of_the_configuration_matches_the_same_in_both(
    connection: Connection, pattern: str, values: list[str], data: st.DataObject | None
) -> None:
    try:
        lineage = Lineage(
            required=(), triggers={}, patterns={"custom": pattern}, overwrite=OverwritePermissions(needs=())
        )
    except ValidationError:
        return
    if data is not None:
        values = [*values, data.draw(st.from_regex(re.compile(pattern, re.DOTALL), fullmatch=True))]
    requirements = LineageRequirements.from_config(lineage)
    try:
        require_patterns(connection, [Rule("", "", True, "reject", requirements.as_json())])
    except ConfigError:
        return  # Enabling the gate refuses it.
    for value in values:
        (summary,) = json.loads(as_json([{"custom": value}]))
        assert _by_the_database(connection, summary, requirements.as_json()) == lineage_problems(summary, requirements)


# --- which rule -------------------------------------------------------------------------------------------------------

_names = st.text("ab.*?[]!-^\\`$ \u2003{|é", min_size=1, max_size=4)
_levels = st.text("ab*?[]!-^\\`$ \u2003{|é", max_size=4)
_globs = st.one_of(
    st.text("ab.*?[]!-^\\`$ {|é", min_size=1, max_size=6),
    st.sampled_from(["*", "a.*", "a.?", "[!a]*", "*.a", "a.[ab]", "a.[z-a]", "a.[!z-a]", "a.[[a]", "lifecycle.*"]),
)


@pytest.mark.seconds
@settings(max_examples=200)
@given(
    entries=st.dictionaries(_globs, st.sampled_from(["reject", "report"]), max_size=5),
    names=st.lists(st.tuples(st.lists(_levels, min_size=1, max_size=2), _names), min_size=1, max_size=5),
)
def test_the_first_rule_that_matches_is_the_entry_of_the_configuration(
    connection: Connection, entries: dict[str, str], names: list[tuple[list[str], str]]
) -> None:
    tables: dict[str, Any] = {key: {"lineage": {"mode": mode}} for key, mode in entries.items()}
    rows = [(".".join(levels), name) for levels, name in names] + [("lifecycle", "plan_files")]
    # Keys that are the names themselves: an exact key is stronger than any pattern.
    exact = str(Identifier.of_row(*rows[0]))
    try:
        config = LifecycleConfig.model_validate({"tables": {**tables, exact: {"lineage": {"mode": "report"}}}})
    except ValidationError as error:
        # Two spellings of one key are refused, whatever they say.
        assume("is another spelling of" not in str(error))
        raise
    _install(connection, config)
    for row in rows:
        table = str(Identifier.of_row(*row))
        found = mode_of(connection, GatedRow("live", *row))
        if table.startswith("lifecycle."):
            assert found == "none", table
            continue
        try:
            assert found == ("none" if config.entry(table) is None else config.policy(table).lineage.mode), table
        except ConfigError:
            assert found != "none", table  # Several match equally well.


def _install(connection: Connection, config: LifecycleConfig) -> None:
    add = (
        f"INSERT INTO {SCHEMA}.rules SELECT 'live', o - 1, r->>'entry', r->>'pattern', (r->>'exact')::boolean, "
        "r->>'mode', (r->>'requirements')::jsonb "
        "FROM jsonb_array_elements(CAST(:rules AS JSONB)) WITH ORDINALITY AS e (r, o)"
    )
    connection.execute(text(f"DELETE FROM {SCHEMA}.rules"))
    connection.execute(text(add), {"rules": json.dumps([vars(rule) for rule in rules_of(config)])})
