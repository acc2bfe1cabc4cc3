"""A commit that does not say who wrote it and why is refused before its swap."""

from __future__ import annotations

import pytest

from artemis_lifecycle.config.policies import Lineage, OverwritePermissions
from artemis_lifecycle.errors import LineageRejected
from artemis_lifecycle.lineage.requirements import (
    LineageRequirements,
    lineage_problems,
    needs,
    snapshot_ids,
    validate_lineage,
)

REQUIREMENTS = LineageRequirements.from_config(Lineage())
COMPLETE = {
    "operation": "append",
    "writer.id": "ingest-pipeline-prod-1",
    "writer.host": "ground-station-3.artemis.internal",
    "writer.commit_hash": "a1b2c3d4",
    "writer.invocation_id": "run-2024-03-15-1027",
    "input.row_count": "12000",
    "input.bytes_compressed": "24831044",
    "trigger.type": "schedule",
}
BY_HAND = COMPLETE | {"trigger.type": "manual", "trigger.operator": "j.smith"}


def test_a_complete_summary_passes() -> None:
    validate_lineage(COMPLETE, REQUIREMENTS)
    validate_lineage(BY_HAND, REQUIREMENTS)


@pytest.mark.parametrize("key", REQUIREMENTS.required_keys)
def test_each_required_key_is_missed_when_absent_and_when_blank(key: str) -> None:
    without = {name: value for name, value in COMPLETE.items() if name != key}
    assert lineage_problems(without, REQUIREMENTS) == (f"required key {key} is missing",)
    assert f"required key {key} is missing" in lineage_problems(COMPLETE | {key: "  "}, REQUIREMENTS)


def test_the_refusal_names_every_problem_the_table_and_the_way_out() -> None:
    with pytest.raises(LineageRejected) as caught:
        validate_lineage({"operation": "append"}, REQUIREMENTS, table="db.t")
    text = str(caught.value)
    assert all(key in text for key in REQUIREMENTS.required_keys if key != "operation")
    assert "db.t" in text
    assert "snapshot-property" in text


@pytest.mark.parametrize("operation", ["compaction", "expiration", "APPEND"])
def test_an_operation_that_iceberg_does_not_know_is_refused(operation: str) -> None:
    assert "Iceberg reserves" in lineage_problems(COMPLETE | {"operation": operation}, REQUIREMENTS)[0]


@pytest.mark.parametrize(
    ("trigger", "needed"),
    [("manual", "trigger.operator"), ("incident-response", "trigger.ticket"), ("replay", "input.snapshot_ids")],
)
def test_each_trigger_asks_for_its_own_key(trigger: str, needed: str) -> None:
    summary = COMPLETE | {"trigger.type": trigger}
    assert lineage_problems(summary, REQUIREMENTS) == (f"trigger.type={trigger} needs {needed}",)
    assert lineage_problems(summary | {needed: "[1]"}, REQUIREMENTS) == ()


def test_an_unknown_trigger_is_refused_unless_the_requirements_know_it() -> None:
    summary = COMPLETE | {"trigger.type": "whim"}
    assert "trigger.type='whim'" in lineage_problems(summary, REQUIREMENTS)[0]
    own = LineageRequirements(triggers={"whim": needs("trigger.mood")})
    assert lineage_problems(summary, own) == ("trigger.type=whim needs trigger.mood",)


def test_a_compaction_names_what_it_read() -> None:
    summary = COMPLETE | {"operation": "replace"}
    assert "input.snapshot_ids" in lineage_problems(summary, REQUIREMENTS)[0]
    assert lineage_problems(summary | {"input.snapshot_ids": "[4727, 4728]"}, REQUIREMENTS) == ()


def test_an_overwrite_is_traced_to_a_person_and_a_ticket() -> None:
    overwrite = {"operation": "overwrite"}
    assert "trigger.operator, trigger.ticket" in lineage_problems(COMPLETE | overwrite, REQUIREMENTS)[0]
    assert "trigger.ticket" in lineage_problems(BY_HAND | overwrite, REQUIREMENTS)[0]
    assert lineage_problems(BY_HAND | overwrite | {"trigger.ticket": "ARTEMIS-3"}, REQUIREMENTS) == ()


def test_only_permitted_writers_and_operators_overwrite() -> None:
    permissions = OverwritePermissions(writers=("correction-job",), operators=("a.jones",))
    requirements = LineageRequirements.from_config(Lineage(overwrite=permissions))
    overwrite = BY_HAND | {"operation": "overwrite", "trigger.ticket": "ARTEMIS-3"}
    assert lineage_problems(overwrite, requirements) == (
        "writer 'ingest-pipeline-prod-1' may not overwrite",
        "operator 'j.smith' may not trigger an overwrite",
    )
    allowed = {"writer.id": "correction-job", "trigger.operator": "a.jones"}
    assert lineage_problems(overwrite | allowed, requirements) == ()
    assert lineage_problems(BY_HAND, requirements) == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("input.row_count", "many"),
        ("input.row_count", "-1"),
        ("input.bytes_compressed", "1.5"),
        ("writer.commit_hash", "main"),
        ("input.snapshot_ids", "the last one"),
        ("input.snapshot_ids", "[1.5]"),
        ("input.snapshot_ids", "[1"),
    ],
)
def test_a_value_that_cannot_be_what_it_should_be_is_refused(key: str, value: str) -> None:
    assert any(key in problem for problem in lineage_problems(COMPLETE | {key: value}, REQUIREMENTS))


def test_snapshot_ids_are_read_as_json_and_as_text() -> None:
    assert snapshot_ids("[4727, 4728]") == snapshot_ids("4727,4728") == snapshot_ids(' ["4727", 4728] ') == (4727, 4728)
    assert snapshot_ids("") == ()
