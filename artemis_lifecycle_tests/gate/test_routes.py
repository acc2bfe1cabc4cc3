"""However a table's path is spelled, the gate sees the table, or refuses to guess."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.commits.requests import Route, TableName, UnclearError, has_dot_segments, route_of

_LETTERS = "abcXYZ019-_~.@€ %#\\;?+"
_part = st.text(_LETTERS, min_size=1, max_size=6).filter(lambda part: part not in (".", ".."))


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
    wanted = Route("update", TableName(tuple(levels), name))
    try:
        assert route_of(path + end) == wanted
    except UnclearError:
        assert set("#?\\;").intersection("".join((*prefix, *levels, name)))


@given(
    path=st.sampled_from(
        [b"/v1/namespaces/a/tables/t", b"/v1/namespaces/a/register", b"/v1/tables/rename", b"/v1/transactions/commit"]
    ),
    at=st.integers(0, 40),
    odd=st.sampled_from([b"#", b"\\", b";", b"%23", b"%5C", b"%3F", b"%3B", b"%2523", b"%253f", b"%00", b"%0A"]),
    more=st.sampled_from([b"", b"/", b"x", b"/x", b"?x", b"%2Fx"]),
)
def test_a_delimiter_in_a_commits_path_never_hides_the_commit(path: bytes, at: int, odd: bytes, more: bytes) -> None:
    with suppress(UnclearError):
        found = route_of(path + odd + more)
        if found is None:
            # With one more part, no server takes it for the commit's path.
            assert (odd == b"%5C" and more.endswith(b"x")) or (odd == b"%3B" and more in (b"/x", b"%2Fx"))
        else:
            # Below a table, an endpoint that the gate does not know is held against the table's rules, too.
            assert found.kind in (route_of(path).kind, "unknown")  # type: ignore[union-attr]
    with suppress(UnclearError):
        # Inside, it may be a part of a name, as which every server reads it.
        found = route_of(path[:at] + odd + path[at:])
        assert found is not None or odd not in (b"#", b"\\", b";", b"%00", b"%0A")


def _spelled(segment: str, random: object) -> bytes:
    """Any octet may be percent-encoded; some must be."""
    return b"".join(
        f"%{octet:02{random.choice('xX')}}".encode()  # type: ignore[attr-defined]
        if not (0x20 < octet < 0x7F and octet != 0x25) or random.random() < 0.3  # type: ignore[attr-defined]
        else bytes([octet])
        for octet in segment.encode()
    )


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/namespaces/a/tables/b;c=d",
        b"/v1/namespaces%2Fa/tables/b",
        b"/v1/%FF/tables",
        b"/v1/transactions/commit#x",
        b"/v1/namespaces/a/tables/b#/x",
        b"/v1/namespaces/a/register#x",
        b"/v1/tables/rename#x",
        b"/v1/tables\\rename",
        b"/v1/tables%5Crename",
        b"/v1/transactions/commit%23x",
        b"/v1/transactions/commit%253Bx",
        b"/v1/transactions/commit%20",
        b"/v1/transactions/%2563ommit",
        b"/v1/transactions/%2525252563ommit",
        b"/v1/namespaces/a/tables/b%00",
    ],
)
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
