"""What a handoff asks of an object store for one file, and of how many files at once."""

from __future__ import annotations

import threading
from collections import Counter
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


def test_one_task_copies_many_files_at_once_with_four_requests_each() -> None:
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
        stores.head(f"s3://{bucket}/none")  # Once for each bucket, a HEAD of the bucket follows.
        injected.requests.clear()
        mapping: Any = SimpleNamespace(rules=LocationRules())
        done = pa.Table.from_batches(
            Copier(stores, stores, mapping)(pa.Table.from_pylist(rows, WANTED).to_batches())
        ).to_pylist()
        assert [(file["action"], file["error"]) for file in done] == [("copied", None)] * files
        assert Counter(injected.requests) == {"HeadObject": 2 * files, "GetObject": files, "CopyObject": files}
        assert stores.read(f"s3://{bucket}/cold/7") == b"7"


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
