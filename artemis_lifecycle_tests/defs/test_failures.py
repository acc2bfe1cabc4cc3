from __future__ import annotations

import pytest
from dagster import Failure

from artemis_lifecycle.defs.common import Waiting, as_dagster_failure
from artemis_lifecycle.errors import (
    ApprovalNeeded,
    CommitConflict,
    CommitStateUnknown,
    CopyMismatch,
    Held,
    LeaseLost,
    LeaseTaken,
    LifecycleError,
    MissingFile,
    OperationsUnavailable,
    Paused,
    Refused,
    StorageError,
    UnreadableMetadata,
)


def as_failure(error: Exception) -> Failure:
    with pytest.raises(Failure) as raised, as_dagster_failure():
        raise error
    return raised.value


def test_a_failure_says_what_the_error_says_and_keeps_its_parts() -> None:
    error = StorageError("The store refused", table="a.b", path="s3://x/y", untouched="all files", hint="try again")
    failure = as_failure(error)
    assert failure.description == str(error)
    assert {key: value.value for key, value in failure.metadata.items()} == {
        "error": "StorageError",
        "table": "a.b",
        "path": "s3://x/y",
        "left_untouched": "all files",
        "next": "try again",
    }
    assert failure.__cause__ is error


@pytest.mark.parametrize("kind", [StorageError, OperationsUnavailable, CommitConflict])
def test_what_may_pass_in_seconds_is_tried_again_in_the_run(kind: type[LifecycleError]) -> None:
    assert as_failure(kind("it may pass")).allow_retries


@pytest.mark.parametrize(
    "kind",
    [LeaseLost, Refused, UnreadableMetadata, MissingFile, CopyMismatch, CommitStateUnknown],
)
def test_what_waits_for_others_or_for_a_person_is_not(kind: type[LifecycleError]) -> None:
    assert not as_failure(kind("it will not")).allow_retries


@pytest.mark.parametrize("kind", [LeaseTaken, Paused, ApprovalNeeded, Held])
def test_a_waiting_step_is_not_a_failure(kind: type[LifecycleError]) -> None:
    with pytest.raises(Waiting) as raised, as_dagster_failure():
        raise kind("it waits")
    assert type(raised.value.error) is kind


def test_an_unexpected_error_is_shown_and_not_retried() -> None:
    failure = as_failure(RuntimeError("first line\nsecond line"))
    assert failure.description == "RuntimeError: first line"
    assert not failure.allow_retries


def test_a_block_without_an_error_is_timed() -> None:
    with as_dagster_failure() as watch:
        pass
    assert 0 <= watch.seconds < 1
