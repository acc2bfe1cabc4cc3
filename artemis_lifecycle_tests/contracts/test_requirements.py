"""A commit that does not record who wrote it and why is refused before its swap."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

import artemis_lifecycle
from artemis_lifecycle.config.policies import Lineage, OverwritePermissions
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems, validate_lineage
from artemis_lifecycle.errors import LineageRejected

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


def test_a_writer_checks_its_commit_with_the_requirements_of_a_configuration() -> None:
    """As documented, by the names at the top of the package."""
    own = {"ns.drafts": {"lineage": {"required": ["writer.id"]}}}
    config = artemis_lifecycle.LifecycleConfig.model_validate({"tables": own})
    lineage = artemis_lifecycle.CommitLineage("ingest", "ops-3", "9d03e17", "run-118", "manual", operator="ada")
    summary = {"operation": "append", **lineage.summary()}
    of_drafts, of_others = (
        artemis_lifecycle.LineageRequirements.from_config(config.policy(table).lineage)
        for table in ("ns.drafts", "ns.other")
    )
    artemis_lifecycle.validate_lineage(summary, of_drafts)
    with pytest.raises(artemis_lifecycle.LifecycleError, match=r"input\.row_count is missing.*ns\.other"):
        artemis_lifecycle.validate_lineage(summary, of_others, table="ns.other")


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
    assert lineage_problems(COMPLETE | {"operation": operation}, REQUIREMENTS)[0] == (
        f"operation {operation} is not one of append, replace, overwrite, delete"
    )


@pytest.mark.parametrize(
    ("trigger", "needed"),
    [("manual", "trigger.operator"), ("incident-response", "trigger.ticket"), ("replay", "input.snapshot_ids")],
)
def test_each_trigger_needs_its_own_key(trigger: str, needed: str) -> None:
    summary = COMPLETE | {"trigger.type": trigger}
    assert lineage_problems(summary, REQUIREMENTS) == (f"trigger.type={trigger} needs {needed}",)
    assert lineage_problems(summary | {needed: "[1]"}, REQUIREMENTS) == ()


def test_a_table_has_trigger_types_of_its_own() -> None:
    summary = COMPLETE | {"trigger.type": "whim"}
    assert "trigger.type whim" in lineage_problems(summary, REQUIREMENTS)[0]
    own = LineageRequirements.from_config(Lineage(triggers={"whim": ("trigger.mood",)}))
    assert lineage_problems(summary, own) == ("trigger.type=whim needs trigger.mood",)


def test_a_compaction_names_what_it_read() -> None:
    summary = COMPLETE | {"operation": "replace"}
    assert lineage_problems(summary, REQUIREMENTS) == ("operation=replace needs input.snapshot_ids",)
    assert lineage_problems(summary | {"input.snapshot_ids": "[4727, 4728]"}, REQUIREMENTS) == ()


def test_an_overwrite_is_traced_to_a_person_and_a_ticket() -> None:
    overwrite = {"operation": "overwrite"}
    assert lineage_problems(COMPLETE | overwrite, REQUIREMENTS) == (
        "operation=overwrite needs trigger.operator, trigger.ticket",
    )
    assert lineage_problems(BY_HAND | overwrite, REQUIREMENTS) == ("operation=overwrite needs trigger.ticket",)
    assert lineage_problems(BY_HAND | overwrite | {"trigger.ticket": "ARTEMIS-3"}, REQUIREMENTS) == ()


def test_only_permitted_writers_and_operators_overwrite_and_the_refusal_names_them() -> None:
    permissions = OverwritePermissions(writers=("correction-job",), operators=("a.jones",))
    requirements = LineageRequirements.from_config(Lineage(overwrite=permissions))
    overwrite = BY_HAND | {"operation": "overwrite", "trigger.ticket": "ARTEMIS-3"}
    assert lineage_problems(overwrite, requirements) == (
        "writer.id=ingest-pipeline-prod-1 may not overwrite; permitted: correction-job",
        "trigger.operator=j.smith may not overwrite; permitted: a.jones",
    )
    allowed = {"writer.id": "correction-job", "trigger.operator": "a.jones"}
    assert lineage_problems(overwrite | allowed, requirements) == ()
    assert lineage_problems(BY_HAND, requirements) == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("input.row_count", "many"),
        ("input.row_count", "-1"),
        ("input.row_count", "9223372036854775808"),
        ("input.bytes_compressed", "1.5"),
        ("writer.commit_hash", "main"),
        ("writer.commit_hash", "artemis-lifecycle 0.1.0"),
        ("writer.host", "a\nb"),
        ("writer.id", "x" * 1025),
        ("input.snapshot_ids", "the last one"),
        ("input.snapshot_ids", "[1.5]"),
        ("input.snapshot_ids", "[1"),
        ("input.snapshot_ids", '{"db.t": 1}'),
        ("input.snapshot_ids", "[" + ", ".join(["1"] * 40_000) + "]"),
    ],
)
def test_a_malformed_value_is_refused(key: str, value: str) -> None:
    assert any(problem.startswith(key) for problem in lineage_problems(COMPLETE | {key: value}, REQUIREMENTS))


def test_a_table_has_patterns_of_its_own() -> None:
    requirements = LineageRequirements.from_config(Lineage(patterns={"trigger.ticket": "ARTEMIS-[0-9]+"}))
    assert lineage_problems(COMPLETE, requirements) == ()
    assert lineage_problems(COMPLETE | {"trigger.ticket": "ARTEMIS-3x"}, requirements) == (
        "trigger.ticket=ARTEMIS-3x does not match ARTEMIS-[0-9]+",
    )


@pytest.mark.parametrize(
    "pattern", [r"\d+", "(?i)a", "^a", "a$", "a**", "a*?", "[[:alpha:]]", "a{300}", "(", "(?=a)", r"\bword"]
)
def test_a_pattern_that_postgres_could_read_differently_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match=r"pattern|portable"):
        Lineage(patterns={"writer.id": pattern})
    Lineage(patterns={"writer.id": r"(?:ingest|replay)-[a-z0-9^$]{1,20}\.prod(-[0-9]+)?"})


def test_where_overwrites_are_for_a_few_deletes_are_too_unless_the_configuration_says_otherwise() -> None:
    by_hand = BY_HAND | {"operation": "delete", "trigger.ticket": "ARTEMIS-3"}

    def problems(**overwrite: tuple[str, ...]) -> tuple[str, ...]:
        lineage = Lineage(overwrite=OverwritePermissions.model_validate(overwrite))
        return lineage_problems(by_hand, LineageRequirements.from_config(lineage))

    assert problems() == problems(operations=("overwrite",), writers=("other",)) == ()
    (refused,) = problems(writers=("other",))
    assert "may not delete" in refused and "lineage.overwrite.operations" in refused
    (refused,) = problems(operators=("a.jones",))
    assert refused.startswith("trigger.operator=j.smith may not delete")
    assert problems(writers=(by_hand["writer.id"],)) == ()
