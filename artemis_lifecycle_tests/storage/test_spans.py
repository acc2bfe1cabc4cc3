"""A prefix in pieces: together they are the prefix, and no key is in two of them, whatever the keys are."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage import s3 as s3_module
from artemis_lifecycle.storage.s3 import S3Store
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import Span
from artemis_lifecycle_tests.storage.s3_server import S3Server

NOW = datetime(2024, 3, 1, tzinfo=UTC)
PAGE = 3

_letters = st.one_of(
    st.sampled_from("ab0/-_=.~!\u00e9\ud7ff\ue000\uffff\U0001f600\U0010ffff"), st.characters(exclude_categories=["Cs"])
)
_keys = st.one_of(
    st.text(_letters, min_size=1, max_size=6),
    st.builds("{:05d}-{}".format, st.integers(0, 40), st.sampled_from(["a", "b", ""])),
    st.builds("day={:02d}/x{}".format, st.integers(0, 30), st.integers(0, 9)),
)


class Bucket:
    """What S3 answers to a listing of these keys, page by page."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = sorted(set(keys))
        self.requests = 0
        self.meta = SimpleNamespace(artemis_pace=StoreSettings().paced_by)

    def list_objects_v2(self, **request: Any) -> dict[str, Any]:
        self.requests += 1
        behind = request.get("ContinuationToken") or request.get("StartAfter", "")
        found = [key for key in self.keys if key.startswith(request["Prefix"]) and key > behind]
        most = min(request["MaxKeys"], PAGE)
        page = {"Contents": [{"Key": key, "Size": 1, "LastModified": NOW} for key in found[:most]]}
        return page | ({"IsTruncated": True, "NextContinuationToken": found[most - 1]} if len(found) > most else {})

    def store(self) -> S3Store:
        return S3Store(StoreSettings(), lambda: self)


def _listed(store: S3Store, span: Span) -> list[str]:
    return [file.path for file in store.list_span(span)]


@pytest.mark.seconds
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(_keys, max_size=60), st.integers(1, 12), st.randoms())
def test_pieces_are_the_whole_and_share_nothing(keys: list[str], wanted: int, random: Any) -> None:
    bucket = Bucket([*(f"t/{key}" for key in keys), "s/before", "t0/behind"])
    store = bucket.store()
    whole = [file.path for file in store.list("s3://b/t")]
    pieces = store.split(Span("s3://b/t"), wanted)
    assert list(itertools.chain(*(_listed(store, piece) for piece in pieces))) == whole
    # What is left of a piece, divided anew, where a task stopped.
    for piece in pieces:
        paths = _listed(store, piece)
        if paths:
            stopped = random.randrange(len(paths))
            rest = Span(piece.prefix, paths[stopped], piece.until)
            again = store.split(rest, wanted)
            assert list(itertools.chain(*(_listed(store, each) for each in again))) == paths[stopped + 1 :]


@pytest.mark.parametrize(
    "names",
    [
        [f"{number:05d}-77-aaaa.parquet" for number in range(2000)],
        [f"data/day=2024-01-{number % 30:02d}/{number:05d}-77-aaaa.parquet" for number in range(2000)],
        [f"{number * 2654435761 % 2**32:08x}-4567-aaaa.parquet" for number in range(2000)],
    ],
)
def test_ordinary_names_are_divided_with_few_questions(names: list[str]) -> None:
    bucket = Bucket([f"t/{name}" for name in names])
    store = bucket.store()
    pieces = store.split(Span("s3://b/t"), 8)
    assert bucket.requests <= 70
    sizes = [len(_listed(store, piece)) for piece in pieces]
    assert sum(sizes) == 2000 and len(pieces) >= 8 and max(sizes) <= 1100


def test_a_server_without_an_order_is_not_listed_in_pieces() -> None:
    bucket = Bucket([f"t/{number}" for number in range(6)])
    bucket.keys.reverse()
    with pytest.raises(StorageError, match="order of keys"):
        list(bucket.store().list_span(Span("s3://b/t", "s3://b/t/3")))


@pytest.mark.slow
def test_a_real_listing_in_pieces_by_small_pages(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "_PAGE", PAGE)
    names = ["a", "a/b", "a/b/c", "a-", "a.", "a0", "b%2Fc", "c d", "c+d", "\u00e9", "e\u0301", "\U0001f600", "z" * 200]
    names += [f"{number:05d}-x" for number in range(25)] + [f"day={number}/x" for number in range(5)]
    for name in names:
        s3.client().put_object(Bucket=bucket, Key=f"t/{name}", Body=b"1")
    s3.client().put_object(Bucket=bucket, Key="t/marker/", Body=b"")
    stores = s3.stores()
    whole = [file.path for file in stores.list(f"s3://{bucket}/t")]
    assert sorted(whole) == sorted(f"s3://{bucket}/t/{name}" for name in names)
    for wanted in (1, 4, 9, 40):
        pieces = stores.split(Span(f"s3://{bucket}/t"), wanted)
        listed = [file.path for piece in pieces for file in stores.list_span(piece)]
        assert listed == whole
        assert len(pieces) >= wanted


@pytest.mark.parametrize("prefix", ["gs://b/t", "abfss://c@a/t", "file:///t", "/t"])
def test_a_store_without_spans_is_refused_and_never_asked_as_s3(prefix: str) -> None:
    stores = Stores(StoreSettings(), lambda: pytest.fail("an S3 client was made"))
    with pytest.raises(StorageError, match="Only a prefix in S3"):
        stores.split(Span(prefix), 4)
    with pytest.raises(StorageError, match="Only a prefix in S3"):
        list(stores.list_span(Span(prefix)))
