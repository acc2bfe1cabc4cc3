"""The typed form of a commit's lineage, and the encoding of its inputs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.contracts import CommitLineage, InputSnapshot
from artemis_lifecycle.contracts.summary import PATTERNS, format_inputs, parse_inputs
from artemis_lifecycle.errors import BadInput

_ids = st.integers(0, 2**63 - 1)
_names = st.text(st.characters(exclude_characters='"\\:', exclude_categories=["Cs"], min_codepoint=32), min_size=1)
_own = st.lists(_ids.map(InputSnapshot), max_size=5)
_others = st.lists(st.builds(InputSnapshot, _ids, _names, st.none() | st.just("other")), min_size=1, max_size=5)


@given(_own | _others)
def test_inputs_come_back_as_they_were_written(inputs: list[InputSnapshot]) -> None:
    assert sorted(parse_inputs(format_inputs(inputs)), key=str) == sorted(inputs, key=str)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[4727, 4728]", [InputSnapshot(4727), InputSnapshot(4728)]),
        ("4727,4728", [InputSnapshot(4727), InputSnapshot(4728)]),
        (' ["4727", 4728] ', [InputSnapshot(4727), InputSnapshot(4728)]),
        ("", []),
        (
            '{"telemetry.passes": [1], "cold:ops.sites": ["2"]}',
            [InputSnapshot(1, "telemetry.passes"), InputSnapshot(2, "ops.sites", "cold")],
        ),
        ('{"db.`a:b`": [1]}', [InputSnapshot(1, "db.`a:b`")]),
    ],
)
def test_inputs_are_ids_of_the_table_or_an_object_of_tables(text: str, expected: list[InputSnapshot]) -> None:
    assert list(parse_inputs(text)) == expected


@given(st.integers(0, 2**64))
def test_a_count_is_a_number_that_fits_eight_bytes(number: int) -> None:
    fits = re.fullmatch(PATTERNS["input.row_count"], str(number)) is not None
    assert fits == (number < 2**63)


@given(
    st.builds(
        CommitLineage,
        writer_id=st.just("ingest"),
        writer_host=st.just("station-3"),
        commit_hash=st.just("a1b2c3d"),
        invocation_id=st.just("run-1"),
        trigger_type=st.just("manual"),
        input_rows=st.none() | _ids,
        input_bytes=st.none() | _ids,
        inputs=st.none() | st.lists(_ids.map(InputSnapshot), max_size=3).map(tuple),
        operator=st.none() | st.just("j.smith"),
        ticket=st.none() | st.just("ARTEMIS-3"),
    )
)
def test_a_lineage_comes_back_from_its_summary(lineage: CommitLineage) -> None:
    assert CommitLineage.parse(lineage.summary() | {"operation": "append"}) == lineage


def test_parsing_names_everything_that_is_wrong() -> None:
    with pytest.raises(BadInput, match=r"writer\.host is missing.*input\.row_count=x is malformed"):
        CommitLineage.parse({"writer.id": "a", "input.row_count": "x"})
