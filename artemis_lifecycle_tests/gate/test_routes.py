"""However a table's path is spelled, the gate sees the table, or refuses to guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.gate.routes import Route, TableName, UnclearError, has_dot_segments, route_of

_UNRESERVED = "abcXYZ019-_~.@€ %"
_part = st.text(_UNRESERVED, min_size=1, max_size=6).filter(lambda part: part not in (".", ".."))


@given(
    prefix=st.lists(_part, max_size=2),
    levels=st.lists(_part, min_size=1, max_size=3),
    name=_part,
    slashes=st.lists(st.integers(1, 3), min_size=12, max_size=12),
    end=st.sampled_from([b"", b"/", b"//"]),
    encoded=st.randoms(use_true_random=False),
)
def test_spellings_of_one_path_are_one_route(
    prefix: list[str], levels: list[str], name: str, slashes: list[int], end: bytes, encoded: object
) -> None:
    segments = ["v1", *prefix, "namespaces", "\x1f".join(levels), "tables", name]
    path = b"".join(
        b"/" * count + _spelled(segment, encoded) for segment, count in zip(segments, slashes, strict=False)
    )
    assert route_of(path + end) == Route("update", TableName(tuple(levels), name))


def _spelled(segment: str, random: object) -> bytes:
    """Any octet may be percent-encoded; some must be."""
    return b"".join(
        f"%{octet:02{random.choice('xX')}}".encode()  # type: ignore[attr-defined]
        if not (0x20 < octet < 0x7F and octet != 0x25) or random.random() < 0.3  # type: ignore[attr-defined]
        else bytes([octet])
        for octet in segment.encode()
    )


@pytest.mark.parametrize("path", [b"/v1/namespaces/a/tables/b;c=d", b"/v1/namespaces%2Fa/tables/b", b"/v1/%FF/tables"])
def test_a_path_that_could_mean_several_things_is_unclear(path: bytes) -> None:
    with pytest.raises(UnclearError):
        route_of(path)


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/config",
        b"/v1/oauth/tokens",
        b"/v1/namespaces",
        b"/v1/namespaces/a/tables",
        b"/v1/namespaces/a/tables/t/metrics",
        b"/v1/p/namespaces/a/views/v",
        b"/v1/views/rename",
    ],
)
def test_the_gate_ignores_what_commits_to_no_table(path: bytes) -> None:
    assert route_of(path) is None and not has_dot_segments(path)
