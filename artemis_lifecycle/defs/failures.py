"""The project's errors in Dagster: the text, its parts as metadata, and whether a retry may help."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from artemis_lifecycle.errors import (
    ApprovalNeeded,
    CommitConflict,
    CopyMismatch,
    Held,
    LeaseTaken,
    LifecycleError,
    MissingFile,
    NotApplicable,
    OperationsUnavailable,
    Paused,
    StorageError,
    UnreadableMetadata,
)
from artemis_lifecycle.escaping import terminal

RETRIES = dg.RetryPolicy(max_retries=2, delay=15, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)
"""For errors that may pass within seconds. Every step resumes, so a second attempt has no second effect."""

_MAY_PASS = (StorageError, OperationsUnavailable, CommitConflict)
_LOST = (MissingFile, UnreadableMetadata, CopyMismatch)
WILL_NOT_PASS = frozenset(each.__name__ for each in _LOST)
"""Error classes for files that are missing or damaged: no attempt changes that until a person restores them."""

FOR_A_PERSON = (ApprovalNeeded, Held)
_WAITING = (*FOR_A_PERSON, LeaseTaken, Paused)


class Waiting(Exception):  # noqa: N818
    """The step waits for what `error` says: a person, the table's lease, the end of a pause, or the next window."""

    def __init__(self, error: LifecycleError) -> None:
        super().__init__(str(error))
        self.error = error


class Skipped(Exception):  # noqa: N818
    """The step is not to run now. `said` is what to show of it."""

    def __init__(self, outcome: str, **said: str | dg.MetadataValue) -> None:
        super().__init__(outcome)
        self.said = {"outcome": outcome, **said}


class Watch:
    """Measures how long a step has run."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the step began, rounded to hundredths."""
        return round(time.monotonic() - self._began, 2)


@contextmanager
def as_dagster_failure() -> Iterator[Watch]:
    """Time the block, and turn an error inside it into a Failure with the same text. NotApplicable passes.

    Only errors that may pass by themselves are retried within the run. If another run holds the table's lease, the step
    fails at once and is retried later: waiting would block a slot that other tables need.
    """
    try:
        yield Watch()
    except _WAITING as error:
        raise Waiting(error) from error
    except NotApplicable:
        raise
    except LifecycleError as error:
        parts = {"table": error.table, "path": error.path, "left_untouched": error.untouched, "next": error.hint}
        raise dg.Failure(
            description=str(error),
            metadata={
                "error": dg.MetadataValue.text(type(error).__name__),
                **{key: dg.MetadataValue.text(terminal(value)) for key, value in parts.items() if value},
            },
            allow_retries=isinstance(error, _MAY_PASS) and not isinstance(error, _LOST),
        ) from error
    except (dg.Failure, Skipped):
        raise
    except Exception as error:
        # A retry policy retries any exception. An unexpected one needs a person to read it.
        first_line = next(iter(str(error).strip().splitlines()), "")
        raise dg.Failure(
            description=terminal(f"{type(error).__name__}: {first_line}"),
            metadata={"error": dg.MetadataValue.text(type(error).__name__)},
            allow_retries=False,
        ) from error
