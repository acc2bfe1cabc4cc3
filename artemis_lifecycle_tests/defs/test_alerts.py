"""Alerts: each thing that a person should know is posted once, for as long as it is so."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from dagster import AssetKey, DagsterRun, DagsterRunStatus, SensorDefinition, build_sensor_context

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.defs.alerts import alerts
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.escaping import markdown, terminal
from artemis_lifecycle.fleet.fleet import FOLDER
from artemis_lifecycle.operations.fleet import run_times
from artemis_lifecycle_tests.defs.conftest import OTHER, TABLE, Project, said


class _Hook:
    """A webhook on loopback; `status` is what it answers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.status = 200
        self.refuses = ""
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = 400 if hook.refuses and hook.refuses in body["text"] else hook.status
                if status == 200:
                    hook.texts.append(body["text"])
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/services/T0/secret-part"


@pytest.fixture
def hook() -> Iterator[_Hook]:
    made = _Hook()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def _tick(project: Project, cursor: str | None) -> tuple[str | None, str]:
    """The cursor after a tick, and what the tick says."""
    sensor: SensorDefinition = alerts
    with build_sensor_context(
        instance=project.instance,
        cursor=cursor,
        repository_def=project.definitions.get_repository_def(),
        resources={"lifecycle": project.resource()},
    ) as context:
        found = sensor.evaluate_tick(context)
    return found.cursor, found.skip_message or ""


def test_each_condition_is_reported_once_and_again_when_it_recurs(
    hook: _Hook, make_project: Callable[..., Project]
) -> None:
    project = make_project(tables={"artemis.*": {}}, alerts={"webhook": hook.url})
    project.create(TABLE, commits=1)
    with project.lifecycle() as lifecycle:
        plan = lifecycle.plan_expiration(TABLE)
        lifecycle.operations.verdicts.add(plan.plan_id, "plan_keeps_every_ref", "a tag", passed=False)
        lifecycle.pause(TABLE, who="ada", why="an incident\x1b[31m")
        tags = {"artemis/job": "plan", "dagster/partition": TABLE}
        project.instance.add_run(DagsterRun("plan", tags=tags, status=DagsterRunStatus.FAILURE))
        lifecycle.operations.thaws.request(
            "thaw-7",
            "uuid",
            TABLE,
            snapshot_ids=[1],
            case_id="C-7",
            requester="ada",
            reason="the audit",
            days=1,
            files_location="file:/f",
            files=3,
            size_in_bytes=5,
            approve_within=timedelta(hours=1),
        )
        first, _ = _tick(project, None)
        (thaw,) = (text for text in hook.texts if "thaw-7" in text)
        assert "ada asks to thaw 3 files (5 bytes) for C-7: the audit. artemis approve-thaw thaw-7" in thaw
        assert thaw.split(" waits")[0] == TABLE and any("C-7" in text for text in _waits_for(lifecycle, TABLE))
        lifecycle.operations.thaws.end("thaw-7", "bob", "refused")
        assert not any("C-7" in text for text in _waits_for(lifecycle, TABLE))
        assert len(hook.texts) == 4 and not any("\x1b" in text for text in hook.texts)
        again, said = _tick(project, first)
        assert len(hook.texts) == 4 and "nothing new" in said
        lifecycle.resume(TABLE, who="ada")
        over, _ = _tick(project, again)
        lifecycle.pause(TABLE, who="ada", why="another one")
        _tick(project, over)
        assert len(hook.texts) == 5 and "another one" in hook.texts[-1]


def _waits_for(lifecycle: Lifecycle, table: str) -> tuple[str, ...]:
    (found,) = (each.waits_for for each in lifecycle.fleet().tables if each.table == table)
    return found


def test_a_red_check_of_a_table_is_posted_once_and_is_on_the_page_and_in_the_terminal(
    hook: _Hook, make_project: Callable[..., Project]
) -> None:
    """By its newest result for that table, whatever the newest one for another table says."""
    # Not those of other tests in this database.
    judged, other, odd = "artemis.judged", "artemis.other", "artemis.odd\u202ename"
    project = make_project(tables={"artemis.*": {}}, alerts={"webhook": hook.url})
    project.register(judged, other, odd)
    cursor, _ = _tick(project, None)
    hook.texts.clear()  # Other tests' tables in this database.
    red = "lineage_ledger: lineage_gate"

    def note(table: str, *, is_red: bool) -> None:
        with project.lifecycle() as lifecycle:
            lifecycle.operations.check_results.note(table, "lineage_ledger", "lineage_gate", "said so", is_red=is_red)

    def posted() -> list[str]:
        nonlocal cursor
        hook.texts.clear()
        cursor, _ = _tick(project, cursor)
        return sorted(hook.texts)

    def shown() -> dict[str, tuple[str, ...]]:
        with project.lifecycle() as lifecycle:
            result = project.definitions.resolve_job_def("fleet_page").execute_in_process(instance=project.instance)
            page = lifecycle.live_stores.read(f"{lifecycle.root}/{FOLDER}/index.html").decode()
            of_terminal = {terminal(each.table): each.red_checks for each in lifecycle.fleet().tables}
        values = said(result, "fleet")
        assert next(iter(values)) == "summary" and str(values["summary"]).startswith("tables: ")
        table = values["first_tables"]
        rows = {str(each.data["table"]): str(each.data["red"]) for each in table.records}
        assert all(text in page for text in rows.values())
        found = {name: tuple(text.split("; ")) for name, text in rows.items() if text}
        assert found == {name: checks for name, checks in of_terminal.items() if checks}
        return found

    note(judged, is_red=True), note(odd, is_red=True), note(other, is_red=True)
    note(other, is_red=False)
    texts = posted()
    assert texts == [f"{table}: the check {red} is red. said so" for table in sorted((judged, terminal(odd)))]
    assert shown() == {judged: (red,), terminal(odd): (red,)}
    assert posted() == []
    note(judged, is_red=False)
    assert posted() == [] and judged not in shown()
    note(judged, is_red=True)
    assert posted() == [f"{judged}: the check {red} is red. said so"]


def test_runs_that_failed_between_ticks_are_reported_at_the_next_tick(
    hook: _Hook, make_project: Callable[..., Project]
) -> None:
    """However long that took, and however many they are: some at each tick."""
    project = make_project(tables={"artemis.*": {}}, alerts={"webhook": hook.url})
    cursor, _ = _tick(project, None)
    failed = [DagsterRun("plan", tags={"artemis/job": "plan"}, status=DagsterRunStatus.FAILURE) for _ in range(45)]
    for run in failed:
        project.instance.add_run(run)
    hook.texts.clear()
    for _ in range(3):
        cursor, _ = _tick(project, cursor)
    assert sorted(text for text in hook.texts if "run of plan" in text) == sorted(
        f"all tables: a run of plan failed ({run.run_id})" for run in failed
    )
    _tick(project, cursor)
    assert len(hook.texts) == 45
    # What a person or a backfill materializes has no job of the project.
    ours, others = AssetKey("expiration_plan"), AssetKey("sales")
    for key in (ours, others):
        run = DagsterRun("__ASSET_JOB", asset_selection=frozenset({key}), status=DagsterRunStatus.FAILURE)
        project.instance.add_run(run)
    cursor, _ = _tick(project, cursor)
    assert [text for text in hook.texts[45:] if "run of assets failed" in text] == hook.texts[45:]
    assert len(hook.texts) == 46
    hook.texts.pop()
    # A daemon that was down for a week: its cursor is a week old, and so are the runs.
    week = (datetime.now(UTC) - timedelta(days=7)).isoformat()
    _tick(project, json.dumps({"sent": [], "since": week}))
    assert len(hook.texts) == 65


def test_a_webhook_that_refuses_loses_nothing_and_its_address_is_not_shown(
    hook: _Hook, make_project: Callable[..., Project]
) -> None:
    project = make_project(tables={"artemis.*": {}}, alerts={"webhook": hook.url})
    project.register(TABLE)
    with project.lifecycle() as lifecycle:
        lifecycle.pause(TABLE, who="ada", why="a flood")
        assert "secret-part" not in repr(lifecycle.config)
    hook.status = 500
    with pytest.raises(Exception, match=r".") as refused:
        _tick(project, None)
    cause = refused.value.__cause__ or refused.value
    assert isinstance(cause, StorageError) and "500" in str(cause) and "secret-part" not in str(cause)
    hook.status = 200
    _tick(project, None)
    assert sum("a flood" in text for text in hook.texts) == 1


def test_one_alert_that_the_receiver_refuses_blocks_no_other_and_is_given_up(
    hook: _Hook, make_project: Callable[..., Project]
) -> None:
    project = make_project(tables={"artemis.*": {}}, alerts={"webhook": hook.url})
    project.register(*(f"artemis.t{number}" for number in range(5)))
    cursor, _ = _tick(project, None)
    with project.lifecycle() as lifecycle:
        for number in range(5):
            lifecycle.pause(f"artemis.t{number}", who="ada", why="odd" if number == 0 else "a flood")
    hook.texts.clear()
    hook.refuses = "odd"
    for _ in range(8):
        cursor, _ = _tick(project, cursor)
    assert len([text for text in hook.texts if "a flood" in text]) == 4
    hook.refuses = ""
    _tick(project, cursor)
    with project.lifecycle() as lifecycle:
        for number in range(5):
            lifecycle.resume(f"artemis.t{number}", who="ada")


def test_texts_of_others_are_no_mention_link_or_markup_in_an_alert_and_it_links_to_the_pages(
    hook: _Hook, make_project: Callable[..., Project]
) -> None:
    why = "<!channel> <https://evil.example|approve here> www.evil.com evil.com a@evil.com @here *b* `c` :bomb: tel:1"
    project = make_project(tables={"artemis.*": {}}, alerts={"webhook": hook.url, "ui": "http://dagster:3000/"})
    project.register(TABLE)
    hook.texts.clear()
    with project.lifecycle() as lifecycle:
        lifecycle.pause(TABLE, who="<@U1>", why=why)
        tags = {"artemis/job": "plan", "dagster/partition": TABLE}
        run = DagsterRun("plan", tags=tags, status=DagsterRunStatus.FAILURE)
        project.instance.add_run(run)
        _tick(project, None)
        lifecycle.resume(TABLE, who="ada")
    (paused,) = (text for text in hook.texts if "channel" in text)
    text, _, link = paused.rpartition(" ")
    assert link.startswith("<http://dagster:3000/assets/") and link.endswith("|table>")
    assert "<" not in text and ">" not in text
    outside = "".join(text.split("`")[::2])
    for each in ("evil", "@", "*b*", ":bomb:", "tel:"):
        assert each in text and each not in outside
    (failed,) = (text for text in hook.texts if run.run_id in text)
    assert f" <http://dagster:3000/runs/{run.run_id}|run> <http://dagster:3000/assets/" in failed
    for text in (why, "x\u202e|y https://evil"):
        assert "](" not in markdown(text).replace("\\]", "")
        assert "evil" not in "".join(markdown(text).split("`")[::2])


def test_a_window_that_will_not_suffice_is_reported_once_per_window(
    hook: _Hook, make_project: Callable[..., Project]
) -> None:
    """Also where the forecast goes from one to the other with each run that ends."""
    now = datetime.now(UTC)
    # Open for 21 hours more.
    window = {"from": f"{now - timedelta(hours=2):%H:%M}", "to": f"{now - timedelta(hours=3):%H:%M}"}
    project = make_project(tables={"artemis.*": {"quiet_window": window}}, alerts={"webhook": hook.url})
    # A table that no other test planned in this window.
    project.register(OTHER)

    def ran(hours: float) -> None:
        """A run that took so long, in the place of all earlier ones."""
        with project.lifecycle() as lifecycle:
            started, engine = lifecycle.operations.clock.now() - timedelta(hours=hours), lifecycle.operations.engine
            with engine.begin() as connection:
                connection.execute(run_times.delete())
            lifecycle.operations.run_times.note("run", OTHER, "plan", started, 2)

    with project.lifecycle() as lifecycle:
        # Of other tests in this database; a paused table has nothing to do.
        for pause in lifecycle.operations.pauses.in_force():
            lifecycle.operations.pauses.end("ada", pause.table_uuid)
    first, _ = _tick(project, None)
    assert not any("suffice" in text for text in hook.texts), "nothing is recorded yet"
    hook.texts.clear()  # Other tests' tables in this database.
    ran(30)
    late, _ = _tick(project, first)
    (said,) = hook.texts
    assert "will not suffice" in said and OTHER in said and "2 at once" in said
    ran(0.001)
    enough, _ = _tick(project, late)
    ran(30)
    _tick(project, enough)
    assert hook.texts == [said]
    passed = ["window 2026-01-01T08:00:00+00:00 2026-01-01T00:00:00+00:00"]
    over = json.dumps({"sent": passed, "since": now.isoformat()})
    assert "2026-01-01" not in str(_tick(project, over)[0])
