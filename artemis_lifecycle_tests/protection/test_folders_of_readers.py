"""Where other tables read is recorded (`reached/tables.json`), and stays known: through a pointer that was put back and
forward again, and beside a hold on another table."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.reachability import reached
from artemis_lifecycle.reachability.index import files as index_files
from artemis_lifecycle_tests.cold_tier.test_put_back import put_back
from artemis_lifecycle_tests.protection.foreign import append, expire_in_metadata, ids, overwrite, sql, take_up
from artemis_lifecycle_tests.protection.test_finding_10 import create


def take_up_of_owner(lifecycle: Lifecycle) -> Path:
    owner = create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    [shared] = (owner / "data").glob("*.parquet")
    take_up(lifecycle, "db.reader", shared.parent)
    return shared


def test_a_reader_that_was_put_back_and_registered_again_keeps_what_it_took_up(all_of_db: Lifecycle) -> None:
    shared = take_up_of_owner(all_of_db)
    before = all_of_db.resources.live_catalog.entry("db.reader").previous_metadata_location
    newest = all_of_db.resources.live_catalog.entry("db.reader").metadata_location
    # The reader's own night: its index has one segment, with the manifests of both commits.
    all_of_db.plan_expiration("db.reader")
    put_back(all_of_db, "db.reader", str(before))
    # Another table's deletion looks, and sees a part of that segment.
    all_of_db.scan_orphans("db.owner")
    put_back(all_of_db, "db.reader", newest)
    overwrite(all_of_db, "db.owner", 2)
    all_of_db.expire("db.owner")
    assert shared.exists()
    assert ids(all_of_db, "db.reader") == [1, 1]


def test_a_plan_whose_list_is_gone_is_closed_as_each_step_says(all_of_db: Lifecycle) -> None:
    for name in ("db.owner", "db.reader"):
        create(all_of_db, name)
        overwrite(all_of_db, name, 2)
    plan = all_of_db.plan_expiration("db.reader")
    shutil.rmtree(Path(plan.files_location.removeprefix("file:")).parent)
    overwrite(all_of_db, "db.reader", 3)
    for step, name in ((all_of_db.scan_orphans, "db.owner"), (all_of_db.plan_expiration, "db.reader")):
        with pytest.raises(LifecycleError, match=f"artemis close {plan.plan_id}"):
            step(name)
    all_of_db.close_plan(plan.plan_id, who="ann", why="its list is gone")
    all_of_db.scan_orphans("db.owner")
    all_of_db.expire("db.reader")


@pytest.mark.parametrize("then", ["stays", "dropped", "renamed"])
def test_a_hold_on_another_table_forgets_nothing_of_what_a_held_one_read(all_of_db: Lifecycle, then: str) -> None:
    shared = take_up_of_owner(all_of_db)
    create(all_of_db, "db.other")
    all_of_db.hold("db.reader", owner="legal", reason="case 7")
    overwrite(all_of_db, "db.reader", 2)
    old = [each.snapshot_id for each in all_of_db.snapshot_history("db.reader").snapshots][:-1]
    expire_in_metadata(all_of_db, "db.reader", old)
    overwrite(all_of_db, "db.owner", 2)
    all_of_db.expire("db.owner")
    assert shared.exists()
    all_of_db.observe_catalog()
    if then == "dropped":
        sql(all_of_db, "DROP TABLE {live}.db.reader")
    elif then == "renamed":
        sql(all_of_db, "ALTER TABLE {live}.db.reader RENAME TO db.reader_2")
    all_of_db.observe_catalog()
    if then == "dropped":
        all_of_db.expire("db.owner")
        assert shared.exists()
    append(all_of_db, "db.other", 2)
    all_of_db.hold("db.other", owner="ann", reason="unrelated")
    index_files._known.clear()  # The next night is another process.
    overwrite(all_of_db, "db.owner", 3)
    with suppress(LifecycleError):
        all_of_db.expire("db.owner")
    for plan in all_of_db.plans("db.owner"):
        with suppress(LifecycleError):
            all_of_db.delete_files(plan.plan_id)
    assert shared.exists()


def test_a_hold_knows_what_its_table_read_without_the_cache(all_of_db: Lifecycle) -> None:
    shared = take_up_of_owner(all_of_db)
    reads = all_of_db.hold("db.reader", owner="legal", reason="case 7").reads
    assert shared.parent.as_posix() in [folder.removeprefix("file://") for folder in reads]
    overwrite(all_of_db, "db.reader", 2)
    old = [each.snapshot_id for each in all_of_db.snapshot_history("db.reader").snapshots][:-1]
    expire_in_metadata(all_of_db, "db.reader", old)
    (Path(all_of_db.resources.root.removeprefix("file://")) / "reached" / "tables.json").unlink()
    index_files._known.clear()
    overwrite(all_of_db, "db.owner", 2)
    with suppress(LifecycleError):
        all_of_db.expire("db.owner")
    assert shared.exists()


def test_folders_of_a_part_of_a_segment_that_an_earlier_version_recorded_are_read_again(
    all_of_db: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = take_up_of_owner(all_of_db)
    before = all_of_db.resources.live_catalog.entry("db.reader").previous_metadata_location
    newest = all_of_db.resources.live_catalog.entry("db.reader").metadata_location
    with monkeypatch.context() as old:
        old.setattr(index_files, "_names", lambda state, number: (state.segments[number].name,))
        index_files._known.clear()
        all_of_db.plan_expiration("db.reader")
        put_back(all_of_db, "db.reader", str(before))
        all_of_db.scan_orphans("db.owner")
        put_back(all_of_db, "db.reader", newest)
        all_of_db.scan_orphans("db.owner")
        path = Path(all_of_db.resources.root.removeprefix("file://")) / "reached" / "tables.json"
        stored = json.loads(path.read_text())
        for each in stored["tables"].values():
            each["segments"] = each.pop("read")
        path.write_text(json.dumps({**stored, "sha256": reached._checksum(stored["tables"])}))
    index_files._known.clear()
    overwrite(all_of_db, "db.owner", 2)
    all_of_db.expire("db.owner")
    assert shared.exists()
    assert ids(all_of_db, "db.reader") == [1, 1]
