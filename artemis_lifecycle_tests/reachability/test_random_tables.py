"""The random tables that the proofs stand on, against the readers: each says what the other says."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artemis_lifecycle.metadata import manifest_lists, manifests
from artemis_lifecycle.metadata.types import UNKNOWN_LENGTH
from artemis_lifecycle.storage.location import normalize
from artemis_lifecycle_tests.metadata.whole_manifests import whole_entries
from artemis_lifecycle_tests.reachability.answers import examples, mentions
from artemis_lifecycle_tests.reachability.conftest import Folders
from artemis_lifecycle_tests.reachability.metadata_tables import OPENINGS, RULES, STEPS, built
from artemis_lifecycle_tests.reachability.writers import DELETED

pytestmark = pytest.mark.slow


@examples(150)
@given(opening=OPENINGS, steps=STEPS, rules=st.sampled_from(RULES))
def test_metadata_files_say_what_the_model_says(
    folders: Folders, opening: bytes, steps: list[bytes], rules: Any
) -> None:
    with folders() as folder:
        table = built(opening, steps, folder, rules)
        metadata = table.read_metadata()
        assert [snapshot.snapshot_id for snapshot in metadata.snapshots] == table.ids()
        assert metadata.current_snapshot_id == table.current
        assert dict(metadata.refs) == table.refs
        for snapshot in metadata.snapshots:
            held = table.held[snapshot.snapshot_id]
            listed = manifest_lists.manifests_of(table.stores, snapshot)
            assert [entry.manifest_path for entry in listed.entries] == [path for _, path in held.manifests]
            for entry, (manifest, _) in zip(listed.entries, held.manifests, strict=True):
                assert entry.content == (manifest.content if held.list_file is not None else 0)
                if held.counts_recorded and held.list_file is not None:
                    counts = (entry.existing_files_count, entry.added_files_count, entry.deleted_files_count)
                    assert counts == manifest.counts
                assert entry.manifest_length in (UNKNOWN_LENGTH, manifest.file.size)
                read = whole_entries(table.stores, entry)
                assert [
                    (int(item.status), item.data_file.file_path, item.data_file.content, item.data_file.content_offset)
                    for item in read
                ] == [(entry.status, entry.path, entry.content, entry.offset) for entry, _ in manifest.entries]
                live = manifests.live_entries(table.stores, entry)
                assert live.column("file_path").to_pylist() == [entry.path for entry, _ in manifest.live]


@examples(150)
@given(opening=OPENINGS, steps=STEPS)
def test_the_writer_by_hand_writes_what_fastavro_reads(folders: Folders, opening: bytes, steps: list[bytes]) -> None:
    with folders() as folder:
        table = built(opening, steps, folder)
        for held in table.held.values():
            for manifest, _ in held.manifests:
                assert manifest.file.real is not None
                with open(manifest.file.real, "rb") as file:
                    data = file.read()
                if b"avro.codec" in data and not any(codec in data for codec in (b"\x08null", b"\x0edeflate")):
                    # fastavro needs packages more for the others; there the project's own readers must do.
                    continue
                # fastavro makes dates of days, and has none before the year 1.
                data = data.replace(b'"logicalType":"date"', b'"logicalType":"days"')
                found = [dict(_values(record)) for record in fastavro.reader(io.BytesIO(data))]
                for record, (entry, _) in zip(found, manifest.entries, strict=True):
                    assert entry.path in record.values() and entry.size in record.values()


def _values(record: dict[str, Any]) -> Any:
    for key, value in record.items():
        if isinstance(value, dict) and key in ("data_file", "f_data_file"):
            yield from _values(value)
        elif not isinstance(value, dict | list):
            yield key, value


@examples(150)
@given(opening=OPENINGS, steps=STEPS, rules=st.sampled_from(RULES))
def test_two_paths_have_one_location_exactly_when_they_mean_one_file(
    folders: Folders, opening: bytes, steps: list[bytes], rules: Any
) -> None:
    with folders() as folder:
        table = built(opening, steps, folder, rules)
        locations: dict[str, Any] = {}
        for path, file in mentions(table).items():
            assert locations.setdefault(normalize(path, rules), file) is file
        assert len(locations) == len(set(locations.values()))


def test_the_random_tables_have_everything_that_the_proofs_promise(folders: Folders) -> None:
    """Coverage: each of these must come up in a few hundred histories, or the proofs prove less than they say."""
    seen: Counter[str] = Counter()

    # The same histories each time: what is rare must not come up missing by chance.
    @settings(examples(500), derandomize=True, database=None)
    @given(opening=OPENINGS, steps=STEPS, rules=st.sampled_from(RULES))
    def collect(opening: bytes, steps: list[bytes], rules: Any) -> None:
        with folders() as folder:
            table = built(opening, steps, folder, rules)
            seen.update({f"v{table.first_version} now v{table.version}"})
            live: Counter[Any] = Counter()
            spelt: dict[Any, set[str]] = {}
            for path, file in mentions(table).items():
                spelt.setdefault(file, set()).add(path)
            if any(len(paths) > 1 for paths in spelt.values()):
                seen["one file spelt in several ways"] += 1
            manifests = [m for held in table.held.values() for m, _ in held.manifests]
            if len(set(manifests)) < len(manifests):
                seen["a manifest shared by snapshots"] += 1
            for manifest in set(manifests):
                within = Counter(file for entry, file in manifest.entries if entry.status != DELETED)
                live.update(within.keys())
                if any(count > 1 and file.format != "puffin" for file, count in within.items()):
                    seen["a file twice in one manifest"] += 1
                if any(count > 1 and file.format == "puffin" for file, count in within.items()):
                    seen["a Puffin file shared by entries"] += 1
                seen.update({f"status {entry.status}" for entry, _ in manifest.entries})
                seen.update({f"content {entry.content}" for entry, _ in manifest.entries})
                seen.update({f"spec {manifest.spec}"})
            seen["a live file in several manifests"] += any(count > 1 for count in live.values())
            seen["inline manifests"] += any(held.list_file is None for held in table.held.values())
            seen["lists without counts"] += any(not held.counts_recorded for held in table.held.values())
            seen["shared statistics"] += len({each.file for each in table.statistics}) < len(table.statistics)
            seen["statistics beside vectors"] += any(each.file.format == "puffin" for each in table.statistics)
            seen["statistics of nobody"] += any(each.snapshot_id not in table.ids() for each in table.statistics)
            by_number = sorted(table.snapshots, key=lambda each: each.timestamp_ms)
            seen["out of order"] += by_number != table.snapshots
            seen["branches"] += any(ref.is_branch and name != "main" for name, ref in table.refs.items())
            seen["tags"] += any(not ref.is_branch for ref in table.refs.values())
            seen["rolled back"] += len({entry.snapshot_id for entry in table.log}) < len(table.log)
            named = {ref.snapshot_id for ref in table.refs.values()} | {s.parent_id for s in table.snapshots}
            seen["staged"] += any(s.snapshot_id not in named for s in table.snapshots)
            seen["replaced"] += sum(s.parent_id is None for s in table.snapshots) > 1
            seen["versions mixed"] += len({held.version for held in table.held.values()}) > 1
            seen["many snapshots"] += len(table.snapshots) > 7
            seen[f"codec {table.writer.codec}"] += 1

    collect()
    wanted = {
        *(f"v{first} now v{now}" for first in (1, 2, 3) for now in (1, 2, 3) if first <= now),
        *(f"status {status}" for status in range(3)),
        *(f"content {content}" for content in range(3)),
        *(f"spec {spec}" for spec in range(3)),
        *(f"codec {codec}" for codec in ("null", "deflate", "snappy", "zstandard")),
        "one file spelt in several ways",
        "a manifest shared by snapshots",
        "a file twice in one manifest",
        "a Puffin file shared by entries",
        "a live file in several manifests",
        "inline manifests",
        "out of order",
        "statistics of nobody",
        "lists without counts",
        "shared statistics",
        "statistics beside vectors",
        "branches",
        "tags",
        "rolled back",
        "staged",
        "replaced",
        "versions mixed",
        "many snapshots",
    }
    assert {what for what in wanted if not seen[what]} == set()
