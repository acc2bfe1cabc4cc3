"""What a handoff asks of an object store for one file, and of how many files at once."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from artemis_lifecycle.cold_tier.copy import WANTED, Copier
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.storage import s3_server
from artemis_lifecycle_tests.storage.s3_server import Injected, refusal

pytestmark = pytest.mark.seconds


def test_one_task_copies_many_files_at_once_with_two_requests_each() -> None:
    with s3_server.running() as s3:
        settings, bucket = s3.settings(), s3.bucket()
        injected = Injected.around(settings)
        stores = Stores(settings, injected)
        files = 12
        for number in range(files):
            stores.write(f"s3://{bucket}/live/{number}", str(number).encode())
        rows = [
            {
                "kind": "data",
                "source": f"s3://{bucket}/live/{number}",
                "destination": f"s3://{bucket}/cold/{number}",
                "size_in_bytes": len(str(number)),
            }
            for number in range(files)
        ]
        all_of_them = threading.Barrier(files)

        probes: list[str] = []

        def together(request: Any) -> Any:
            if "artemis-probe-" in request.url:  # Does the server refuse a second copy?
                probes.append(request.url)
                return refusal(412, "PreconditionFailed") if len(probes) == 2 else None
            all_of_them.wait(60)
            return None

        injected.answer("CopyObject", together)
        assert stores.copies_within(stores, f"s3://{bucket}/live/0", f"s3://{bucket}/cold/0")
        injected.requests.clear()
        mapping: Any = SimpleNamespace(rules=LocationRules())
        done = pa.Table.from_batches(
            Copier(stores, stores, mapping)(pa.Table.from_pylist(rows, WANTED).to_batches())
        ).to_pylist()
        assert [(file["action"], file["error"]) for file in done] == [("copied", None)] * files
        assert Counter(injected.requests) == {"GetObject": files, "CopyObject": files}
        assert stores.read(f"s3://{bucket}/cold/7") == b"7"


@pytest.mark.parametrize(
    ("there", "recorded", "action", "error"),
    [
        (None, None, "copied", None),
        (b"data", None, "present", None),
        (b"else", None, "taken", None),
        (b"data", "sha256:0", "taken", None),
        (None, "sha256:0", "lost", "but was sha256:0"),
    ],
)
def test_a_copy_that_the_server_refuses_is_compared_with_what_is_there(
    there: bytes | None, recorded: str | None, action: str, error: str | None
) -> None:
    with s3_server.running() as s3:
        settings, bucket = s3.settings(), s3.bucket()
        injected = Injected.around(settings)
        stores = Stores(settings, injected)
        source, destination = f"s3://{bucket}/live/f", f"s3://{bucket}/cold/f"
        stores.write(source, b"data")
        if there is not None:
            stores.write(destination, there)

        def only_new(request: Any) -> Any:
            at = f"s3://{bucket}/{request.url.partition(f'/{bucket}/')[2]}"
            return refusal(412, "PreconditionFailed") if s3.stores().head(at) is not None else None

        injected.answer("CopyObject", only_new)
        row = {"kind": "data", "source": source, "destination": destination, "size_in_bytes": 4, "checksum": recorded}
        mapping: Any = SimpleNamespace(rules=LocationRules())
        copier = Copier(stores, stores, mapping, replaceable=())
        [done] = pa.Table.from_batches(copier(pa.Table.from_pylist([row], WANTED).to_batches())).to_pylist()
        assert (done["action"], error is None or error in done["error"]) == (action, True)
        left = None if stores.head(destination) is None else stores.read(destination)
        assert left == (there or (b"data" if action == "copied" else None))


@pytest.mark.parametrize("when", ["before the copy", "gone"])
def test_a_source_that_changes_or_goes_is_not_copied(when: str) -> None:
    with s3_server.running() as s3:
        settings, bucket = s3.settings(), s3.bucket()
        injected = Injected.around(settings)
        stores = Stores(settings, injected)
        source, destination = f"s3://{bucket}/live/f", f"s3://{bucket}/cold/f"
        stores.write(source, b"data")
        probes: list[str] = []

        def replaced(request: Any) -> Any:
            if "artemis-probe-" in request.url:
                probes.append(request.url)
                return refusal(412, "PreconditionFailed") if len(probes) == 2 else None
            s3.client().put_object(Bucket=bucket, Key="live/f", Body=b"DATA")
            return None

        injected.answer("CopyObject", replaced)
        row = {"kind": "data", "source": source, "destination": destination, "size_in_bytes": 4}
        mapping: Any = SimpleNamespace(rules=LocationRules())
        copier = Copier(stores, stores, mapping)
        assert stores.copies_within(stores, source, destination)
        if when == "gone":
            stores.delete([source])
        [done] = pa.Table.from_batches(copier(pa.Table.from_pylist([row], WANTED).to_batches())).to_pylist()
        assert (done["action"], stores.head(destination)) == ("lost" if when == "gone" else "failed", None)
        assert ("is gone" if when == "gone" else "changed while it was copied") in done["error"]


def test_what_a_probe_has_shown_goes_to_executors_with_the_stores() -> None:
    with s3_server.running() as s3:
        settings, bucket = s3.settings(), s3.bucket()
        injected = Injected.around(settings)
        stores = Stores(settings, injected)
        probes: list[str] = []

        def second_refused(request: Any) -> Any:
            probes.append(request.url)
            return refusal(412, "PreconditionFailed") if len(probes) == 2 else None

        injected.answer("CopyObject", second_refused)
        paths = f"s3://{bucket}/live/f", f"s3://{bucket}/cold/f"
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda _: stores.copies_within(stores, *paths), range(8)))
        assert len(probes) == 2
        there: Stores = pickle.loads(pickle.dumps(stores))
        assert there.copies_within(there, *paths)
        assert not Stores(settings).copies_within(stores, *paths), "moto itself does not refuse it"
        assert "Contents" not in s3.client().list_objects_v2(Bucket=bucket)


def test_what_a_copy_replaces_stays_until_the_new_bytes_are_known() -> None:
    """A server that ignores the condition of a copy must not put another file over the only archived one."""
    with s3_server.running() as s3:
        settings, bucket = s3.settings(), s3.bucket()
        injected = Injected.around(settings)
        stores = Stores(settings, injected)
        source, only = f"s3://{bucket}/live/f", f"s3://{bucket}/cold/f"
        stores.write(source, b"the same")
        stores.copy(source, only)
        stores.archive(only)

        def replaced(_: Any) -> None:
            s3.client().put_object(Bucket=bucket, Key="live/f", Body=b"the sane")

        for request in ("CopyObject", "PutObject"):
            injected.answer(request, replaced)
        stores.copy(source, only)
        assert stores.read(only) == b"the same" and stores.read(source) == b"the sane"


@pytest.mark.parametrize("key", ["f?v=1", "./f", "x/../f"])
def test_a_path_that_engines_cut_is_not_archived_by_its_letters(key: str) -> None:
    """Some read `f`; what stands at the longer key is another object, here of the same size."""
    with s3_server.running() as s3:
        bucket = s3.bucket()
        stores = Stores(s3.settings())
        for name, data in (("f", b"read"), (key, b"else")):
            s3.client().put_object(Bucket=bucket, Key=f"live/{name}", Body=data)
        source, destination = (f"s3://{bucket}/{tier}/{key}" for tier in ("live", "cold"))
        row = {"kind": "data", "source": source, "destination": destination, "size_in_bytes": 4}
        mapping: Any = SimpleNamespace(rules=LocationRules())
        copier = Copier(stores, stores, mapping)
        [done] = pa.Table.from_batches(copier(pa.Table.from_pylist([row], WANTED).to_batches())).to_pylist()
        assert done["action"] == "lost" and "another object" in done["error"]
        assert "Contents" not in s3.client().list_objects_v2(Bucket=bucket, Prefix="cold/")


@pytest.mark.parametrize(
    ("key", "why"),
    [("y" * 256, "more than 255 bytes"), ("h", "a folder has its name"), ("f/i", "is a file, not a folder")],
)
def test_an_object_that_no_disk_can_have_is_lost_to_a_cold_tier_on_one(key: str, why: str, tmp_path: Path) -> None:
    with s3_server.running() as s3:
        stores, source = Stores(s3.settings()), f"s3://{s3.bucket()}/live/{key}"
        stores.write(source, b"data")
        (tmp_path / "h").mkdir()
        (tmp_path / "f").write_bytes(b"file")
        row = {"kind": "data", "source": source, "destination": f"file://{tmp_path}/{key}", "size_in_bytes": 4}
        mapping: Any = SimpleNamespace(rules=LocationRules())
        copier = Copier(stores, Stores(), mapping)
        [done] = pa.Table.from_batches(copier(pa.Table.from_pylist([row], WANTED).to_batches())).to_pylist()
        assert done["action"] == "lost" and why in done["error"]
        assert [each.name for each in sorted(tmp_path.rglob("*"))] == ["f", "h"]
