"""Errors of the project as Dagster shows them: one clear text, its parts as metadata, whether trying again may help."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from dagster import Backoff, Failure, Jitter, MetadataValue, RetryPolicy

from artemis_lifecycle.errors import (
    CommitConflict,
    CopyMismatch,
    LifecycleError,
    MissingFile,
    OperationsUnavailable,
    StorageError,
)
from artemis_lifecycle.escaping import terminal

RETRIES = RetryPolicy(max_retries=2, delay=15, backoff=Backoff.EXPONENTIAL, jitter=Jitter.PLUS_MINUS)
"""For what may pass by itself in seconds. Every step resumes, so a second attempt is never a second effect."""

_MAY_PASS = (StorageError, OperationsUnavailable, CommitConflict)
_WILL_NOT_PASS = (MissingFile, CopyMismatch)


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
    """Time the block, and turn an error inside it into a Failure that says the same.

    Only what may pass by itself is tried again in the run. A table whose lease is taken fails at once, to be tried
    later: waiting would keep a slot from other tables.
    """
    try:
        yield Watch()
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
    except Failure:
        raise
    except Exception as error:
        # A retry policy retries every exception; an unexpected one is for a person to read.
        first_line = next(iter(str(error).strip().splitlines()), "")
        raise Failure(
            description=terminal(f"{type(error).__name__}: {first_line}"),
            metadata={"error": MetadataValue.text(type(error).__name__)},
            allow_retries=False,
        ) from error
