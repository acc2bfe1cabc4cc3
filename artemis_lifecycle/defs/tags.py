"""The tags of runs and materializations."""

WINDOW_TAG = "artemis/window"
"""Of runs that the sensor `maintenance_window` asked for: the day of the window."""

JOB_TAG = "artemis/job"
STEP_TAG = "artemis/step"
PARTITION_TAG = "dagster/partition"
BACKFILL_TAG = "dagster/backfill"

OUTCOME_TAG = "artemis/outcome"
"""Of runs and materializations: `done`, `dry_run`, `waiting`, `not_due`, `not_governed`. Only `done` says that the
partition's step was done."""

WAITS_FOR_TAG = "artemis/waits-for"
"""Of runs: the error class that names what a step waits for. See `failures.FOR_A_PERSON`."""
