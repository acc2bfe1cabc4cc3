"""The demo from its first line to its report: a place, a history, the walk through Dagster, the proofs. Belongs here:
the order of these. Does not belong: how any of them is done.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import Any

from rich.console import Console
from sqlalchemy import Engine

from artemis_lifecycle.api import Lifecycle, Tagged
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.cli.operating import deployment_text
from artemis_lifecycle.cli.output import plain
from artemis_lifecycle.defs.run import Walk, WalkEvent, materialize_fleet, materialize_walk
from artemis_lifecycle.embedded.addresses import DAGSTER_VARIABLE, dagster_postgres_url
from artemis_lifecycle.errors import EnvironmentMissing, InDeepArchive
from artemis_lifecycle.metadata.types import SnapshotHistory
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.roles import APPROVER, LIFECYCLE
from artemis_lifecycle.retention.rules import RetentionSettings, decide, view_of
from artemis_lifecycle.upkeep.costs import TierCost

from . import others, proofs, rest
from .area import SET_ASIDE, Area, demo_area
from .history import TICKET, Debris, InFlight, TableHistory, commit_in_flight, write_histories
from .progress import Board
from .proofs import Fingerprint, Proof, fingerprint, fingerprints
from .report import Answer, DemoReport, TableReport, TierReport, show
from .schedule import TABLES, Action

ASSETS = 14
"""Assets of the walk: what a table's bar counts to."""

LOG = "walk.log"
"""What Dagster said of the walk, in the demo's folder."""

STAYS = frozenset({Action.YOUNG_FILE})
"""Debris that the walk must leave alone."""

RESTORED_BRANCH = "restored-by-the-demo"
"""The branch to which an expired snapshot of the first table is restored. It stays, so that users can query it."""

OLDEST = 3
"""Expired snapshots of each table that are read beforehand, to be read again from the deep archive."""

_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Before:
    """What stood before the walk: each table's fingerprints by snapshot, and the one to be found in cold after it."""

    fingerprints: Mapping[str, Mapping[int, Fingerprint]]
    snapshot_ids: Mapping[str, frozenset[int]]
    expiring: Mapping[str, int | None]


def run_demo(home: Path, console: Console, kinds: Collection[str] = ()) -> DemoReport:
    """Run the whole demo under `home`, with tables of other `kinds`, and print its report.

    Raises what any of its parts raises; a failed step, check or proof is in the report.
    """
    board = Board(console)
    for name in SET_ASIDE:
        if os.environ.pop(name, None) is not None:
            console.print(f"[dim]{name} is not followed here: the demo sets file times back, in warehouses of its own.")
    with others.served(home, kinds) as served, demo_area(home, others=served.lines) as area:
        _environment(area)
        with Lifecycle.open(area.config, owner="artemis-demo") as lifecycle:
            report = _run(lifecycle, area, board, kinds, served)
    show(report, console)
    console.print(
        f"\nLook around: [bold]make ui[/bold], or [bold]artemis tables --config {plain(str(area.config_path))}[/bold]",
        highlight=False,
    )
    return report


def _run(lifecycle: Lifecycle, area: Area, board: Board, kinds: Collection[str], served: others.Served) -> DemoReport:
    now = lifecycle.operations.clock.now()
    with board.phase("Start Spark"):
        spark = lifecycle.spark
    with board.phase("Write 420 days of history"):
        histories = write_histories(
            spark,
            lifecycle.config,
            now,
            lambda table, done, total: board.move(table, done, total, "events"),
            during=_gate(lifecycle),
        )
        for history in histories:
            for name, snapshot_id in history.marks.items():
                lifecycle.tag(history.table, name, snapshot_id, why="kept for the investigation")
    written = others.write(lifecycle, area.folder, now, kinds, served, board)
    tables = (*TABLES, *(table for each in written for table in each.tables))
    with board.phase("Read every snapshot that will stay"):
        before = _read_before(lifecycle, board)
    in_flight = next(history.in_flight for history in histories if history.in_flight is not None)
    expected = fingerprint(in_flight.expected)
    with _gate(lifecycle), _writing(lifecycle, in_flight):
        with board.phase("The walk, through Dagster"):
            walks = _walk(area, lifecycle, board, tables)
        with board.phase("The deep archive, and back"):
            thawed, answers = _deep_archive(lifecycle, TABLES[0], before)
        with board.phase("Read them again"):
            found = [thawed, *_read_after(lifecycle, board, before)]
            found += _debris_proofs(lifecycle, histories)
            found += [proof for each in written for proof in each.prove()]
        with board.phase("The writer in flight commits, others are refused"):
            found += _commit_through_gate(lifecycle, area, in_flight, expected, histories)
    by_name = {walk.table: walk for walk in walks}
    with board.phase("Delete what waited for the writer"):
        (later,) = _walk(area, lifecycle, board, [in_flight.table], job="deletion")
        walked = by_name[in_flight.table]
        events, succeeded = (*later.events, *walked.events), walked.succeeded and later.succeeded
        by_name[in_flight.table] = replace(walked, events=events, succeeded=succeeded)
    reports = [
        _table_report(lifecycle, by_name[history.table], history.commits, lifecycle.costs(history.table).tiers)
        for history in histories
    ]
    reports += [
        _table_report(lifecycle, by_name[table], each.commits, (), each.window)
        for each in written
        for table in each.tables
    ]
    return DemoReport(
        tuple(reports),
        tuple(sorted(found, key=lambda proof: tables.index(proof.table))),
        board.seconds,
        answers,
    )


def _environment(area: Area) -> None:
    """What Dagster's own processes read: where its instance is, and which tables this is about."""
    folder = area.config.home / "dagster"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dagster.yaml").write_text(deployment_text("dagster.yaml"))
    os.environ["DAGSTER_HOME"] = str(folder)
    os.environ[DAGSTER_VARIABLE] = dagster_postgres_url(area.config)
    os.environ["ARTEMIS_CONFIG"] = str(area.config_path)


def _writing(lifecycle: Lifecycle, writer: InFlight) -> AbstractContextManager[Any]:
    return lifecycle.writing(writer.table, writer.writer_id, prefix=writer.prefix, ttl="10m")


# --- the walk ---------------------------------------------------------------------------------------------------------


def _walk(area: Area, lifecycle: Lifecycle, board: Board, tables: Sequence[str], job: str = "whole_walk") -> list[Walk]:
    done = dict.fromkeys(tables, 0)

    def on_event(event: WalkEvent) -> None:
        if event.what == "materialised":
            done[event.table] += 1
        if event.what in ("started", "materialised"):
            board.move(event.table, done[event.table], ASSETS, event.asset)
        elif event.what == "failed":
            board.console.print(f"[red]✗[/red] {plain(event.table)} {event.asset}: {plain(event.message)}")

    # Dagster also logs each event to stderr, which would hide the progress bars.
    with (area.folder / LOG).open("a") as log, redirect_stderr(log):
        walks = materialize_walk(
            tables, config_path=area.config_path, on_event=on_event, spark=lifecycle.spark, job=job
        )
        materialize_fleet(config_path=area.config_path)
        return walks


def _table_report(
    lifecycle: Lifecycle, walk: Walk, commits: int, tiers: Iterable[TierCost], window: str | None = None
) -> TableReport:
    plan, commit = walk.metadata("expiration_plan"), walk.metadata("expiration_commit")
    handoff, deletion = walk.metadata("cold_tier_snapshots"), walk.metadata("physical_deletion")
    scan, orphans = walk.metadata("orphan_scan"), walk.metadata("orphan_deletion")
    return TableReport(
        table=walk.table,
        kind=lifecycle.kind(walk.table),
        window=window or f"{lifecycle.config.policy(walk.table).retention.window.days} d",
        commits=commits,
        snapshots_kept=_number(plan, "snapshots_kept"),
        snapshots_expired=_number(commit, "snapshots_expired"),
        refs_expired=_number(commit, "refs_expired"),
        files_deleted=_number(deletion, "files_deleted"),
        bytes_deleted=_number(deletion, "bytes_deleted"),
        files_copied=_number(handoff, "files_copied"),
        bytes_copied=_number(handoff, "bytes_copied"),
        orphans_removed=_number(orphans, "files_deleted"),
        orphan_bytes=_number(orphans, "bytes_deleted"),
        files_left_in_flight=_number(scan, "skipped_in_flight"),
        checks_passed=sum(1 for event in walk.events if event.check is not None and event.passed),
        checks_failed=walk.failed_checks,
        failures=walk.failures or (() if walk.succeeded else ("the run did not end well",)),
        step_seconds={event.asset: event.seconds or 0.0 for event in walk.events if event.what == "materialised"},
        tiers=tuple(TierReport(tier.tier, tier.snapshots, tier.size_in_bytes) for tier in tiers),
    )


def _number(metadata: Mapping[str, int | float | bool | str], key: str) -> int:
    return int(metadata.get(key, 0))


# --- the deep archive -------------------------------------------------------------------------------------------------


def _deep_archive(lifecycle: Lifecycle, table: str, before: Before) -> tuple[Proof, tuple[Answer, ...]]:
    """Move what is past its retention, thaw a snapshot of it as two people do, and ask each tier the same question."""
    lifecycle.deep_archive(table)
    known = before.fingerprints[table]
    deep = [each for each in known if lifecycle.route(table, snapshot_id=each).readable_in is not None]
    if not deep:
        return proofs.prove_thawed(table, None, 0, False, None, None), ()
    thaw = lifecycle.request_thaw(
        table, deep[:1], case_id="DEMO-1", requester="an analyst", reason="the demo reads what was archived"
    )
    try:
        fingerprint(lifecycle.read(table, snapshot_id=deep[0]))
        refused = False
    except InDeepArchive:
        refused = True
    with _custodian(lifecycle.operations.engine) as custodian:
        custodian.thaws.approve(thaw.thaw_id, "a custodian", "a demo")
    thaw = lifecycle.follow_thaw(thaw.thaw_id)
    after = fingerprint(lifecycle.read(table, snapshot_id=deep[0]))
    waited = f"case {thaw.case_id}, approved by {thaw.approved_by}"
    current = lifecycle.route(table).snapshot_id
    chosen = [(current, ""), (before.expiring[table], ""), (deep[0], waited)]
    answers = [_answer(lifecycle, table, each, said) for each, said in chosen if each is not None]
    return proofs.prove_thawed(table, deep[0], thaw.files, refused, known[deep[0]], after), tuple(answers)


@contextmanager
def _custodian(engine: Engine) -> Iterator[Operations]:
    """The operations database as a second person sees it, who has a login of their own and may approve."""
    name, password = f"custodian_{token_hex(4)}", token_hex(16)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD '{password}' IN ROLE {LIFECYCLE}, {APPROVER}")
    try:
        uri = engine.url.set(username=name, password=password).render_as_string(hide_password=False)
        with Operations.open(uri) as operations:
            yield operations
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP ROLE {name}")


def _answer(lifecycle: Lifecycle, table: str, snapshot_id: int, waited: str) -> Answer:
    route = lifecycle.route(table, snapshot_id=snapshot_id)
    began = time.monotonic()
    rows = lifecycle.query(f"SELECT count(*) AS counted FROM {table} FOR VERSION AS OF {snapshot_id}")
    assert not isinstance(rows, Tagged)  # it is a query
    counted = rows.collect()[0]["counted"]
    expected = route.expected_latency or timedelta(0)
    took = time.monotonic() - began
    kind = route.storage_class or ""
    return Answer(table, route.tier, kind, snapshot_id, counted, expected.total_seconds(), took, waited)


# --- reading, before and after ----------------------------------------------------------------------------------------


def _read_before(lifecycle: Lifecycle, board: Board) -> Before:
    """Fingerprints of what the table's policy keeps now, and of one snapshot of each table that it does not keep."""
    wanted: dict[str, tuple[int, ...]] = {}
    every: dict[str, frozenset[int]] = {}
    expiring: dict[str, int | None] = {}
    for table in TABLES:
        history = lifecycle.snapshot_history(table)
        kept, expired = _decided(lifecycle, table, history)
        refs = {ref.snapshot_id for ref in history.refs.values()}
        expiring[table] = expired[-1] if expired else None
        wanted[table] = proofs.sample(kept, refs) + tuple(dict.fromkeys([*expired[:OLDEST], *expired[-1:]]))
        every[table] = frozenset(snapshot.snapshot_id for snapshot in history.snapshots)
    return Before(_read(lifecycle, board, wanted), every, expiring)


def _decided(lifecycle: Lifecycle, table: str, history: SnapshotHistory) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the policy of the table keeps, and what it lets go, as of now."""
    retention = lifecycle.config.policy(table).retention
    settings = RetentionSettings(
        rule=retention.rule, window_ms=retention.window // _MS, min_snapshots=retention.min_snapshots
    )
    decision = decide(view_of(history), settings, int(history.read_at.timestamp() * 1000))
    return tuple(decision.kept), decision.expired


def _read_after(lifecycle: Lifecycle, board: Board, before: Before) -> list[Proof]:
    live = {
        table: [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history(table).snapshots] for table in TABLES
    }
    wanted = {
        table: tuple(snapshot for snapshot in live[table] if snapshot in before.fingerprints[table]) for table in TABLES
    }
    after = _read(lifecycle, board, wanted)
    found = []
    for table in TABLES:
        meanwhile = set(live[table]) - before.snapshot_ids[table]
        found.append(proofs.prove_kept(table, live[table], before.fingerprints[table], after[table], meanwhile))
        found.append(_cold_proof(lifecycle, table, before, set(live[table])))
    found += _restore_proof(lifecycle, TABLES[0], before)
    return found


def _cold_proof(lifecycle: Lifecycle, table: str, before: Before, live: set[int]) -> Proof:
    snapshot_id = before.expiring[table]
    if snapshot_id is None:
        return proofs.prove_cold(table, None, "", False, None, None)
    tier = lifecycle.route(table, snapshot_id=snapshot_id).tier
    after = fingerprint(lifecycle.read(table, snapshot_id=snapshot_id))
    return proofs.prove_cold(
        table, snapshot_id, tier, snapshot_id in live, before.fingerprints[table].get(snapshot_id), after
    )


def _restore_proof(lifecycle: Lifecycle, table: str, before: Before) -> list[Proof]:
    snapshot_id = before.expiring[table]
    if snapshot_id is None:
        # The proof about the cold catalog reports that nothing expired.
        return []
    # The snapshot may be an overwrite, which needs a ticket where the gate is enabled.
    restored = lifecycle.restore(table, snapshot_id, RESTORED_BRANCH, why="the demo's proof", ticket=TICKET)
    name = parse(table).sql(lifecycle.config.catalogs.live.name)
    after = fingerprint(proofs.snapshot_frame(lifecycle.spark, name, restored.snapshot_id))
    read = before.fingerprints[table][snapshot_id]
    return [proofs.prove_restored(table, snapshot_id, restored.snapshot_id, restored.copied_files, read, after)]


def _read(
    lifecycle: Lifecycle, board: Board, wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, dict[int, Fingerprint]]:
    catalog = lifecycle.config.catalogs.live.name
    names = {parse(table).sql(catalog): table for table in TABLES}
    done = dict.fromkeys(TABLES, 0)

    def on_done(name: str) -> None:
        table = names[name]
        done[table] += 1
        board.move(table, done[table], len(wanted[table]), "snapshots")

    keys = [(name, snapshot) for name, table in names.items() for snapshot in wanted[table]]
    read = fingerprints(lifecycle.spark, keys, on_done)
    made: dict[str, dict[int, Fingerprint]] = {table: {} for table in TABLES}
    for (name, snapshot), found in read.items():
        made[names[name]][snapshot] = found
    return made


# --- what others left behind ------------------------------------------------------------------------------------------


def _debris_proofs(lifecycle: Lifecycle, histories: tuple[TableHistory, ...]) -> list[Proof]:
    def left(debris: Debris) -> int:
        return sum(1 for path in debris.paths if lifecycle.live_stores.head(path) is not None)

    return [
        proofs.prove_debris(
            debris.table, debris.origin, len(debris.paths), left(debris), should_stay=debris.origin in STAYS
        )
        for history in histories
        for debris in history.debris
    ]


@contextmanager
def _gate(lifecycle: Lifecycle) -> Iterator[None]:
    """Inside, the lineage gate refuses every commit that does not record who makes it."""
    lifecycle.enable_gate()
    try:
        yield
    finally:
        lifecycle.disable_gate()


def _commit_through_gate(
    lifecycle: Lifecycle, area: Area, writer: InFlight, expected: Fingerprint, histories: tuple[TableHistory, ...]
) -> list[Proof]:
    """The writer in flight commits, and one over REST; others that record nothing try to, each by another way."""

    def snapshots() -> int:
        return sum(len(lifecycle.snapshot_history(table).snapshots) for table in TABLES)

    before = snapshots()
    # pyiceberg writes no format version 3, which the other table has.
    refusals = {
        "Spark": _refusal(_append_by_spark, lifecycle, writer.table),
        "pyiceberg": _refusal(_append_by_pyiceberg, lifecycle, TABLES[0]),
    }
    commits, skipped = {writer.writer_id: 1}, ""
    try:
        with rest.rest_gate(lifecycle.config, area.config_path, area.folder) as address:
            refusals["REST"] = rest.refusal(address, TABLES[0])
            rest.append(address, TABLES[0], {**writer.lineage, "writer.id": rest.WRITER})
            commits[rest.WRITER] = 1
    except EnvironmentMissing as error:
        skipped = str(error)
    committed = _commit(lifecycle, writer, expected)
    added = snapshots() - before
    passed = sum((Counter(history.writers) for history in histories), Counter(commits))
    gate = proofs.prove_gate(writer.table, passed, refusals, added, expected=len(commits), skipped=skipped)
    return [committed, gate]


def _refusal(append: Callable[[Lifecycle, str], None], lifecycle: Lifecycle, table: str) -> str:
    """Return why the commit was refused; empty if it was not."""
    try:
        append(lifecycle, table)
    except Exception as error:
        # Each engine has errors of its own; that it names the gate is what counts.
        text = " ".join(str(error).split())
        return text[text.index("lineage") :] if "lineage" in text else ""
    return ""


def _append_by_spark(lifecycle: Lifecycle, table: str) -> None:
    name = parse(table).sql(lifecycle.config.catalogs.live.name)
    lifecycle.spark.table(name).limit(1).writeTo(name).append()


def _append_by_pyiceberg(lifecycle: Lifecycle, table: str) -> None:
    from pyiceberg.catalog import load_catalog

    live = lifecycle.config.catalogs.live
    catalog = load_catalog(live.name, **pyiceberg_properties(live))
    try:
        found = catalog.load_table(parse(table).parts)
        # A file of the table once more: to write rows into its partitions, pyiceberg needs another package.
        file = next(iter(found.scan(limit=1).plan_files())).file
        with found.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(file)
    finally:
        catalog.close()


def _commit(lifecycle: Lifecycle, writer: InFlight, expected: Fingerprint) -> Proof:
    from pyspark.sql import functions as F

    present = sum(1 for path in writer.paths if lifecycle.live_stores.head(path) is not None)
    spark, catalog = lifecycle.spark, lifecycle.config.catalogs.live.name
    snapshot_id = commit_in_flight(spark, catalog, writer)
    frame = spark.table(parse(writer.table).sql(catalog))
    names = [path.rpartition("/")[2] for path in writer.paths]
    rows = frame.where(F.element_at(F.split("_file", "/"), -1).isin(names)).select(*frame.columns)
    return proofs.prove_in_flight(writer.table, len(writer.paths), present, expected, fingerprint(rows), snapshot_id)
