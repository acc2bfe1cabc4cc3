"""Errors of the project as Dagster shows them: one clear text, its parts as metadata, whether trying again may help. A
step that waits is no error: it ends green, and says what it waits for.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from dagster import Backoff, Failure, Jitter, MetadataValue, RetryPolicy

from artemis_lifecycle.errors import (
    ApprovalNeeded,
    CommitConflict,
    CopyMismatch,
    Held,
    LeaseTaken,
    LifecycleError,
    MissingFile,
    OperationsUnavailable,
    Paused,
    StorageError,
)
from artemis_lifecycle.escaping import terminal

RETRIES = RetryPolicy(max_retries=2, delay=15, backoff=Backoff.EXPONENTIAL, jitter=Jitter.PLUS_MINUS)
"""For what may pass by itself in seconds. Every step resumes, so a second attempt is never a second effect."""

_MAY_PASS = (StorageError, OperationsUnavailable, CommitConflict)
_WILL_NOT_PASS = (MissingFile, CopyMismatch)


FOR_A_PERSON = (ApprovalNeeded, Held)
_WAITING = (*FOR_A_PERSON, LeaseTaken, Paused)


class Waiting(Exception):  # noqa: N818
    """The step waits for what `error` says: a person, the table's lease, the end of a pause, the next window."""

    def __init__(self, error: LifecycleError) -> None:
        super().__init__(str(error))
        self.error = error


class NotGovernedError(Exception):
    """A backfill met a table that no entry of lifecycle.yaml governs, and leaves it alone."""


class Watch:
    """How long a step has taken so far."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the step began, in hundredths."""
        return round(time.monotonic() - self._began, 2)


@contextmanager
def as_dagster_failure() -> Iterator[Watch]:
    """Time the block, and turn an error inside it into a Failure that says the same, or into Waiting.

    Only what may pass by itself is tried again in the run. A step that waits ends at once, to be asked for later: a run
    that waited would keep a slot from other tables.
    """
    try:
        yield Watch()
    except _WAITING as error:
        raise Waiting(error) from error
    except LifecycleError as error:
        parts = {"table": error.table, "path": error.path, "left_untouched": error.untouched, "next": error.hint}
        raise Failure(
            description=str(error),
            metadata={
                "error": MetadataValue.text(type(error).__name__),
                **{key: MetadataValue.text(terminal(value)) for key, value in parts.items() if value},
            },
            allow_retries=isinstance(error, _MAY_PASS) and not isinstance(error, _WILL_NOT_PASS),
        ) from error
    except (Failure, NotGovernedError):
        raise
    except Exception as error:
        # A retry policy retries every exception; an unexpected one is for a person to read.
        first_line = next(iter(str(error).strip().splitlines()), "")
        raise Failure(
            description=terminal(f"{type(error).__name__}: {first_line}"),
            metadata={"error": MetadataValue.text(type(error).__name__)},
            allow_retries=False,
        ) from error
