"""Declarations that all assets of the walk share, and how a waiting step ends."""

import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Optional, get_type_hints

import dagster as dg
from dagster._core.errors import DagsterPipesExecutionError
from pydantic import Field

from artemis_lifecycle import errors, pipes
from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.defs.processes import SPARK_POOL
from artemis_lifecycle.defs.resources import ChangesResource, LifecycleResource
from artemis_lifecycle.defs.tags import (
    ASSET_TAG,
    BACKFILL_TAG,
    JOB_TAG,
    KIND_TAG,
    OUTCOME_TAG,
    PRIORITY_TAG,
    WAITS_FOR_TAG,
    lacks,
    tables,
)
from artemis_lifecycle.deletion.report import DeletionReport
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
from artemis_lifecycle.escaping import table_of, terminal

# --- failures ---------------------------------------------------------------------------------------------------------
# The project's errors in Dagster: the text, its parts as metadata, and whether a retry may help.

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


if TYPE_CHECKING:
    Materialized = dg.MaterializeResult[None]
    Shown = dict[str, Any] | None
else:
    # Dagster looks for the bare class in an asset's annotation. With a type parameter, it would store a value.
    Materialized = dg.MaterializeResult
    # An op shows its metadata, and has no value.
    Shown = None

Launch = Callable[[dg.AssetExecutionContext, list[str], dict[str, Any]], dg.PipesClientCompletedInvocation]
"""Launches `artemis_lifecycle.pipes` with these arguments and extras by a client of Dagster Pipes, and waits for it."""

_IMPLICIT = "__ASSET_JOB"
"""Dagster's name of the job in which a person or a backfill materializes assets."""


class Changes(dg.Config):
    """The configuration of a step that changes a table or deletes."""

    dry_run: Optional[bool] = Field(
        default=None,
        description="For this step alone: true reports what it would do and changes nothing, false makes the changes. "
        "By default as the resource `changes` says, the switch of the whole run.",
    )

    def is_dry(self, run: ChangesResource) -> bool:
        """Return True if the step only reports: by its own switch, else by the run's."""
        return run.dry_run if self.dry_run is None else self.dry_run


def is_of_this_project(run: dg.DagsterRun, keys: frozenset[dg.AssetKey], *, alone: bool) -> bool:
    """Return True for a run with the project's job tag, and for one in which a person or a backfill materializes
    assets of `keys`; `alone` means no other assets with them."""
    selected = run.asset_selection or frozenset()
    shared = selected & keys
    implicit = run.job_name.startswith(_IMPLICIT) and bool(shared) and (shared == selected or not alone)
    return JOB_TAG in run.tags or implicit


def data_version(*facts: str | int | None) -> dg.DataVersion | None:
    """Return the version of a result that `facts` identify: where there is one, itself, else a digest. None if there is
    none: Dagster then derives one from the versions of what the step read."""
    known = [str(each) for each in facts if each is not None]
    if not known:
        return None
    digest = hashlib.sha256(" ".join(known).encode(errors="surrogatepass")).hexdigest()[:32]
    return dg.DataVersion(terminal(known[0]) if len(known) == 1 else digest)


def delete_each(
    context: dg.AssetExecutionContext, ids: Sequence[str], delete: Callable[[str], DeletionReport]
) -> tuple[list[DeletionReport], dict[str, Any]]:
    """`pipes.delete_each`, with what to show of those that a guard refused."""
    reports, refused = pipes.delete_each(ids, delete)
    if not refused:
        return reports, {}
    for each, refusal in refused:
        context.log.warning(terminal(f"{each}: {refusal}"))
    rows = [(each, terminal(str(why))) for each, why in refused]
    return reports, {**waiting(context, refused[0][1]), "refused": ui_metadata.table(["id", "why"], rows)}


FOR_REAL = (
    "launch it with resources: {changes: {config: {dry_run: false}}} (the arrow beside Materialize, Open launchpad)"
)

NO_PERSON_NEEDED = "no_person_needed"


def walk_asset(
    group: str,
    kinds: set[str],
    deps: tuple[str, ...] = (),
    *,
    changes: bool = False,
    before: Callable[[dg.AssetExecutionContext, Lifecycle, str], None] | None = None,
) -> Callable[[Callable[..., Materialized]], dg.AssetsDefinition]:
    """`@asset` for a step of the walk, which fails `as_dagster_failure`. Its result has the step's `outcome`, the
    table's `kind`, and the `seconds` of a step that ran. A step that waits succeeds with `waiting`, one that the kind
    does not have with `not_applicable`.

    `changes` means that the step changes the table or deletes. Its check `no_person_needed` warns while it waits for a
    person. `before` may raise Skipped. Where the code location launches jobs (`dagster.pipes`), the step runs in one.
    """

    def decorate(compute: Callable[..., Materialized]) -> dg.AssetsDefinition:
        name = compute.__name__

        @wraps(compute)
        def step(context: dg.AssetExecutionContext, **arguments: Any) -> Materialized:
            kind = arguments["lifecycle"].get().kind(table_of(context.partition_key))
            said: dict[str, Any]
            version = None
            try:
                if (missing := lacks(kind, name)) is not None:
                    raise Skipped("not_applicable", why=terminal(missing))
                with as_dagster_failure() as watch:
                    if before is not None:
                        before(context, *opened(context, arguments["lifecycle"]))
                    launch = arguments["lifecycle"].launch if name in pipes.STEPS else None
                    result = (
                        compute(context, **arguments) if launch is None else _outside(context, launch, name, arguments)
                    )
                said, version = {**(result.metadata or {}), "seconds": watch.seconds}, result.data_version
            except dg.Failure as failure:
                lost = failure.metadata.get("error")
                if lost is not None and lost.value in WILL_NOT_PASS:
                    context.instance.add_run_tags(context.run.run_id, {WAITS_FOR_TAG: str(lost.value)})
                raise
            except Waiting as late:
                said = waiting(context, late.error)
            except NotApplicable as error:
                said = {"outcome": "not_applicable", "why": terminal(error.what)}
            except Skipped as skipped:
                said = skipped.said
            done = "dry_run" if said.get("dry_run") is True else "waiting" if "paused" in said else "done"
            outcome = str(said.setdefault("outcome", done))
            if "paused" in said:
                again = "nothing: the next deletion checks these files again (artemis explain TABLE PATH)"
                said = {"waits_for": "pending files", "why": said["paused"], "next": again} | said
            said["kind"] = kind
            if outcome == "dry_run":
                said.setdefault("next", FOR_REAL)
            checks = [_person_check(said)] if changes else None
            if outcome == "dry_run" and version is not None:
                version = dg.DataVersion(f"dry run: {version.value}")
            tags = {OUTCOME_TAG: outcome, KIND_TAG: kind}
            shown = ui_metadata.figures_first(said)
            return Materialized(metadata=shown, tags=tags, check_results=checks, data_version=version)

        warns = "Warns while the step waits for a person."
        specs = [dg.AssetCheckSpec(NO_PERSON_NEEDED, asset=name, description=warns, partitions_def=tables)]
        arguments = declared(name, group, kinds, deps)
        if get_type_hints(compute).get("config") is Changes:
            arguments["metadata"] = {"dry_run": f"on by default. For the changes, {FOR_REAL}"}
        made: dg.AssetsDefinition = dg.asset(**arguments, check_specs=specs if changes else None)(step)
        return made

    return decorate


def by_command(command: Sequence[str]) -> Launch:
    """Return what runs steps by a command of this machine, such as one of spark-submit, which gets STEP and TABLE."""

    def launch(
        context: dg.AssetExecutionContext, arguments: list[str], extras: dict[str, Any]
    ) -> dg.PipesClientCompletedInvocation:
        with warnings.catch_warnings():
            # Of what Dagster's own client uses of Dagster.
            warnings.simplefilter("ignore")
            return dg.PipesSubprocessClient().run(command=[*command, *arguments], context=context, extras=extras)

    return launch


_VERSIONS = ("plan_id", "scan_id", "listing_id", "metadata_location", "snapshot_id")


def _outside(context: dg.AssetExecutionContext, launch: Launch, step: str, arguments: dict[str, Any]) -> Materialized:
    """Run a step as a job (`pipes`). Return its figures, or raise its error."""
    resource, config, table = arguments["lifecycle"], arguments.get("config"), table_of(context.partition_key)
    asked = {} if config is None else dict(config.model_dump())
    if isinstance(config, Changes):
        asked["dry_run"] = config.is_dry(arguments["changes"])
    given = {"config_path": resource.config_path, "in_quiet_window": resource.scheduled, "step": step, "table": table}
    try:
        done = launch(context, [step, table], given | asked)
    except DagsterPipesExecutionError as error:
        # What a job has completed is in the journal, and another one continues from there.
        raise dg.Failure(description=f"The job of {step} failed: {terminal(str(error))}", allow_retries=True) from error
    for message in done.get_custom_messages():
        if isinstance(message, dict) and pipes.ERROR in message:
            parts = dict(message[pipes.ERROR])
            raise getattr(errors, parts.pop("type"))(parts.pop("what"), **parts)
    (result,) = done.get_results()
    found: dict[str, Any] = {key: getattr(value, "value", value) for key, value in (result.metadata or {}).items()}
    if "waits_for" in found:
        _tag_as_waiting(context, str(found["waits_for"]))
    version = data_version(*(found.get(each) for each in _VERSIONS))
    dry = {"dry_run": asked["dry_run"]} if "dry_run" in asked else {}
    return Materialized(data_version=version, metadata=found | dry)


def waiting_op(compute: Callable[..., Shown]) -> Callable[..., None]:
    """Decorate an op's function: it fails `as_dagster_failure`, and if it has to wait, it succeeds with the outcome
    `waiting`. What it returns is shown with its `seconds`. A dry run is tagged."""

    @wraps(compute)
    def step(context: dg.OpExecutionContext, **arguments: Any) -> None:
        config = arguments.get("config")
        if isinstance(config, Changes) and config.is_dry(arguments["changes"]):
            context.instance.add_run_tags(context.run.run_id, {OUTCOME_TAG: "dry_run"})
        try:
            with as_dagster_failure() as watch:
                shown = compute(context, **arguments)
                if shown is not None:
                    context.add_output_metadata(ui_metadata.figures_first({**shown, "seconds": watch.seconds}))
        except NotApplicable as error:
            context.add_output_metadata({"outcome": "not_applicable", "why": terminal(error.what)})
        except Waiting as late:
            context.add_output_metadata(waiting(context, late.error))

    return step


def maintenance_job(
    name: str, description: str, *, kind: str = "iceberg", by_table: bool = True
) -> Callable[[Callable[..., Shown]], dg.JobDefinition]:
    """Decorate a function, the only op of a job outside the walk: it waits like `waiting_op`, and is retried as the
    walk's steps are. One of kind `postgres` needs no Spark session."""

    def decorate(compute: Callable[..., Shown]) -> dg.JobDefinition:
        pool = SPARK_POOL if kind == "iceberg" else None
        step = dg.op(retry_policy=RETRIES, tags={"kind": kind}, pool=pool)(waiting_op(compute))
        dry = " Only reports, unless dry_run is false." if get_type_hints(compute).get("config") is Changes else ""
        partitions = tables if by_table else None

        @dg.job(name=name, description=description + dry, partitions_def=partitions, tags={JOB_TAG: name})
        def launched() -> None:
            step()

        return launched

    return decorate


def waiting(context: dg.AssetExecutionContext | dg.OpExecutionContext, error: LifecycleError) -> dict[str, Any]:
    """Tag a run that waits for what `error` says. Return what to show of it."""
    context.log.warning(terminal(str(error)))
    kind = type(error).__name__
    _tag_as_waiting(context, kind)
    said = {"waits_for": kind, "why": terminal(str(error)), "next": terminal(error.hint or ""), "outcome": "waiting"}
    return {key: value for key, value in said.items() if value}


def _tag_as_waiting(context: dg.AssetExecutionContext | dg.OpExecutionContext, kind: str) -> None:
    context.instance.add_run_tags(context.run.run_id, {OUTCOME_TAG: "waiting", WAITS_FOR_TAG: kind})


def _person_check(said: dict[str, Any]) -> dg.AssetCheckResult:
    if said["outcome"] == "not_applicable":
        return dg.AssetCheckResult(
            check_name=NO_PERSON_NEEDED,
            passed=True,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"Does not apply: {said['why']}",
            metadata={"judged": False},
        )
    needed = "refused" in said or said.get("waits_for") in {each.__name__ for each in FOR_A_PERSON}
    return dg.AssetCheckResult(
        check_name=NO_PERSON_NEEDED,
        passed=not needed,
        severity=dg.AssetCheckSeverity.WARN,
        description=said["why"] if needed else None,
    )


_AFTER_THE_WALK = {"compaction": -1, "observation": -2}
"""The priority of steps in a run: Dagster runs the ready step with the largest first, so health is measured after a
compaction."""


def declared(name: str, group: str, kinds: set[str], deps: tuple[str, ...] = (), version: str = "1") -> dict[str, Any]:
    """Return the arguments of `@asset` that depend on the asset's position in the walk."""
    return {
        "tags": {ASSET_TAG: name},
        "group_name": group,
        "kinds": kinds,
        "deps": [dg.AssetKey(name) for name in deps],
        "partitions_def": tables,
        "code_version": version,
        "pool": SPARK_POOL if "spark" in kinds else None,
        "retry_policy": RETRIES,
        "op_tags": {PRIORITY_TAG: str(_AFTER_THE_WALK.get(group, 0))},
    }


def opened(context: dg.AssetExecutionContext, resource: LifecycleResource) -> tuple[Lifecycle, str]:
    """Return this run's `Lifecycle` and the table of its partition. In a backfill, raises Skipped if no entry
    governs it."""
    lifecycle, table = resource.get(), table_of(context.partition_key)
    if BACKFILL_TAG in context.run.tags and lifecycle.config.entry(table) is None:
        raise Skipped("not_governed", why="no entry of lifecycle.yaml governs the table; a backfill leaves it alone")
    return lifecycle, table
