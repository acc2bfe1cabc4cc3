"""What changed between two sets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from artemis_lifecycle.operations.live_sets import LiveVersion


class _Key(NamedTuple):
    content_id: str
    metadata_location: str
    snapshot_id: int


@dataclass(frozen=True)
class LiveSetComparison:
    """Versions that are live in both sets, or only in one; and contents that only one of them has, by name."""

    before: str
    after: str
    same_versions: int
    only_before: int
    only_after: int
    contents_gone: tuple[str, ...]
    contents_new: tuple[str, ...]
    versions_gone: tuple[str, ...]
    versions_new: tuple[str, ...]


_SHOWN = 1_000


def compared(
    before: str,
    after: str,
    first: Iterable[LiveVersion],
    second: Iterable[LiveVersion],
    names: Mapping[str, str],
) -> LiveSetComparison:
    """Compare two sets, whose versions come in the order of their keys, in one pass. `names` has the contents of both.
    At most 1,000 metadata files are listed of each, once each: many snapshots are in one."""
    same, gone, new = 0, 0, 0
    gone_files, new_files = dict[str, None](), dict[str, None]()
    contents: tuple[set[str], set[str]] = (set(), set())
    left, right = iter(first), iter(second)
    one, two = next(left, None), next(right, None)
    while one is not None or two is not None:
        key_one = None if one is None else _Key(one.content_id, one.metadata_location, one.snapshot_id)
        key_two = None if two is None else _Key(two.content_id, two.metadata_location, two.snapshot_id)
        take_one = key_two is None or (key_one is not None and key_one <= key_two)
        take_two = key_one is None or (key_two is not None and key_two <= key_one)
        same += take_one and take_two
        if take_one and one is not None:
            contents[0].add(one.content_id)
            if not take_two:
                gone += 1
                gone_files[one.metadata_location] = None
            one = next(left, None)
        if take_two and two is not None:
            contents[1].add(two.content_id)
            if not take_one:
                new += 1
                new_files[two.metadata_location] = None
            two = next(right, None)

    def named(ids: set[str]) -> tuple[str, ...]:
        return tuple(sorted(names.get(each, each) for each in ids))

    return LiveSetComparison(
        before, after, same, gone, new,
        named(contents[0] - contents[1]), named(contents[1] - contents[0]),
        tuple(islice(gone_files, _SHOWN)), tuple(islice(new_files, _SHOWN)),
    )  # fmt: skip
