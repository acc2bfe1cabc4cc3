"""Who decides, and by which account: tried by logins of their own on a real server."""

from __future__ import annotations

import os
import pwd
import threading
import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from artemis_lifecycle.errors import BadInput, Busy, NoSuchPlan, Refused
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.decisions import may_be_one_person
from artemis_lifecycle.operations.holds import Heartbeats
from artemis_lifecycle.operations.locks import starters_lock, table_lock
from artemis_lifecycle.operations.roles import APPROVER, INGEST, LIFECYCLE
from artemis_lifecycle_tests.operations.conftest import MakePlan
from artemis_lifecycle_tests.people import login

pytestmark = pytest.mark.seconds

EMPTY_DATABASE = True

NOBODY = ("", "  ", "\t\n", "​", "⁠\ufeff", "ㅤ", "...", "--")
"""Nothing, spaces, characters of no width, and no letter."""

LIKE_ADA = (
    "ada",
    " Ada ",
    "ADA",
    "ada​",
    "аda",  # Cyrillic a
    "ada",  # fullwidth
    "ada@corp.",
    "ada.",
    "a-d-a",
    "àdä",
    "𝐚𝐝𝐚",
    "аԁа",  # Cyrillic, whole
    "CORP\\ada",
)


@pytest.fixture
def thaw_id(operations: Operations) -> str:
    thaw_id = f"thaw-{uuid4().hex}"
    _request(operations, thaw_id)
    return thaw_id


def _request(
    operations: Operations, thaw_id: str, requester: str = "ada", case_id: str = "C-1", reason: str = "the audit"
) -> None:
    operations.thaws.request(
        thaw_id,
        "u",
        "db.t",
        snapshot_ids=[1],
        case_id=case_id,
        requester=requester,
        reason=reason,
        days=1,
        files_location="file:/f",
        files=1,
        size_in_bytes=1,
        approve_within=timedelta(hours=1),
    )


# --- who decides is recorded ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nobody", NOBODY)
def test_every_decision_has_a_person(operations: Operations, table_uuid: str, make_plan: MakePlan, nobody: str) -> None:
    plan = operations.plans.seal(make_plan())
    hold = operations.holds.place(table_uuid, "a.b", "legal", "case")
    pause = operations.pauses.begin("ada", "why", table_uuid, "a.b")
    decided = len(operations.decisions.of_table(table_uuid))
    for decide in (
        lambda: operations.plans.approve(plan.plan_id, nobody, "looked"),
        lambda: operations.plans.approve(plan.plan_id, "ada", nobody),
        lambda: operations.plans.approve(plan.plan_id, nobody, "looked", "lost"),
        lambda: operations.plans.close(plan.plan_id, nobody, "over"),
        lambda: operations.plans.close(plan.plan_id, "ada", nobody),
        lambda: operations.holds.release(hold.hold_id, nobody),
        lambda: operations.holds.place(table_uuid, "a.b", nobody, "case"),
        lambda: operations.pauses.end(nobody, table_uuid),
        lambda: operations.pauses.begin(nobody, "why", str(uuid4()), "a.c"),
    ):
        with pytest.raises(BadInput, match=r"needs (who|why|owner|reason)"):
            decide()
    assert operations.plans.get(plan.plan_id) == plan
    assert operations.holds.get(hold.hold_id) == hold
    assert operations.pauses.of_table(table_uuid, "db.any") == pause
    assert len(operations.decisions.of_table(table_uuid)) == decided


@pytest.mark.parametrize("text", NOBODY)
@pytest.mark.parametrize("name", ["case_id", "requester", "reason"])
def test_a_thaw_is_not_requested_without_a_word(operations: Operations, name: str, text: str) -> None:
    thaw_id = f"thaw-{uuid4().hex}"
    with pytest.raises(BadInput, match=f"needs {name.replace('_', ' ')}"):
        _request(operations, thaw_id, **{name: text})
    with pytest.raises(NoSuchPlan):
        operations.thaws.get(thaw_id)


def test_a_second_approval_does_not_overwrite_the_first(operations: Operations, make_plan: MakePlan) -> None:
    plan = operations.plans.seal(make_plan())
    first = operations.plans.approve(plan.plan_id, "ada", "looked at it")
    assert operations.plans.approve(plan.plan_id, "mallory", "me too") == first
    assert (first.approved_by, first.approved_why) == ("ada", "looked at it")
    operations.plans.close(plan.plan_id, "bob", "not after all")
    said = [(each.kind, each.who, each.why) for each in operations.decisions.about(plan.plan_id)]
    assert said == [
        ("approve-large", "ada", "looked at it"),
        ("approve-large", "mallory", "me too"),
        ("close", "bob", "not after all"),
    ]


def test_releasing_a_hold_records_who(operations: Operations, table_uuid: str) -> None:
    hold = operations.holds.place(table_uuid, "a.b", "legal", "case 7")
    released = operations.holds.release(hold.hold_id, "bob", "case 7 is closed")
    assert (released.released_by, released.released_why) == ("bob", "case 7 is closed")
    # Who releases it again released nothing.
    assert operations.holds.release(hold.hold_id, "eve") == released
    placed, ended = operations.decisions.about(hold.hold_id)
    assert (placed.kind, placed.who, ended.kind, ended.who) == ("hold", "legal", "release", "bob")
    assert ended.account.startswith(f"{pwd.getpwuid(os.getuid()).pw_name}@")
    assert ended.login == operations.engine.url.username


def test_what_was_decided_can_be_neither_changed_nor_forged(operations: Operations, table_uuid: str) -> None:
    operations.holds.place(table_uuid, "a.b", "legal", "case")
    for change in ("UPDATE lifecycle.decisions SET who = 'eve'", "DELETE FROM lifecycle.decisions"):
        # Its owner could; nobody does by mistake.
        with pytest.raises(DBAPIError, match="only ever added to"), operations.engine.begin() as connection:
            connection.execute(text(change))
    with pytest.raises(DBAPIError, match="only ever added to"), operations.engine.begin() as connection:
        connection.execute(text("TRUNCATE lifecycle.decisions"))
    with login(operations.engine, LIFECYCLE) as uri:
        forger = create_engine(uri)
        with forger.begin() as connection:
            connection.execute(
                text(
                    "INSERT INTO lifecycle.decisions (kind, subject, who, why, account, login, decided_at, address) "
                    "VALUES ('close', :subject, 'ada', 'x', 'ada@host', 'ada', '2001-01-01Z', '10.0.0.1')"
                ),
                {"subject": table_uuid},
            )
        forger.dispose()
        (found,) = operations.decisions.about(table_uuid)
        assert found.login == forger.url.username
        assert found.address != "10.0.0.1"
        assert found.decided_at > datetime.now(UTC) - timedelta(minutes=10)


# --- four eyes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIKE_ADA)
def test_a_lookalike_of_the_requesters_name_is_not_a_second_person(
    operations: Operations, thaw_id: str, name: str
) -> None:
    assert may_be_one_person(name, "ada")
    with (
        login(operations.engine, LIFECYCLE, APPROVER) as uri,
        Operations.open(uri) as other,
        pytest.raises(Refused, match="asked for this thaw"),
    ):
        other.thaws.approve(thaw_id, name, "")
    assert operations.thaws.get(thaw_id).approved_by is None


@pytest.mark.parametrize(
    ("one", "other"),
    [("ada", "bob"), ("李", "王"), ("müller", "maier"), ("x1", "x2"), ("Ilan", "Lian"), ("राम", "रमा")],
)
def test_two_names_are_two_people(one: str, other: str) -> None:
    assert not may_be_one_person(one, other)


def test_one_account_is_one_person_whatever_the_names(operations: Operations, thaw_id: str) -> None:
    with pytest.raises(Refused, match=r"cannot approve it, whatever the name.*CREATE ROLE"):
        operations.thaws.approve(thaw_id, "bob", "")
    assert operations.thaws.get(thaw_id).approved_by is None
    # Nor by hand: the server knows who asked.
    with pytest.raises(IntegrityError, match="thaws_second_account"), operations.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE lifecycle.thaws SET requested_login = 'somebody', requester = 'x', approved_by = 'bob', "
                "approved_at = now(), approved_from = requested_from WHERE thaw_id = :id"
            ),
            {"id": thaw_id},
        )


def test_another_login_or_another_user_of_the_system_is_a_second_account(
    operations: Operations, thaw_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with login(operations.engine, LIFECYCLE, APPROVER) as uri, Operations.open(uri) as other:
        approved = other.thaws.approve(thaw_id, "bob", "seen the case")
        assert (approved.requested_login, approved.approved_login) == (
            operations.engine.url.username,
            other.engine.url.username,
        )
    second = f"thaw-{uuid4().hex}"
    _request(operations, second)
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, "bob")
    with pytest.raises(Refused, match="whatever the name"):
        operations.thaws.approve(second, "bob", "")
    # Of the users that every system has.
    monkeypatch.setattr(os, "getuid", lambda: pwd.getpwnam("daemon").pw_uid)
    assert operations.thaws.approve(second, "bob", "").approved_login == operations.engine.url.username


def test_only_who_has_the_role_may_approve(operations: Operations, make_plan: MakePlan, thaw_id: str) -> None:
    plan = operations.plans.seal(make_plan())
    with login(operations.engine, LIFECYCLE) as uri, Operations.open(uri) as service:
        for approve in (
            lambda: service.plans.approve(plan.plan_id, "bob", "looked"),
            lambda: service.plans.approve(plan.plan_id, "bob", "looked", "lost"),
            lambda: service.thaws.approve(thaw_id, "bob", "looked"),
        ):
            with pytest.raises(Refused, match=r"may not approve.*GRANT artemis_approver"):
                approve()
        # Nor by hand, whichever column a reader may go by.
        for column, value in (("approved_by", "'x'"), ("lost_approved_by", "'x'"), ("approved_at", "now()")):
            with pytest.raises(DBAPIError, match="may not approve"), service.engine.begin() as connection:
                connection.execute(
                    text(f"UPDATE lifecycle.plans SET {column} = {value} WHERE plan_id = '{plan.plan_id}'")
                )
        assert service.plans.get(plan.plan_id) == plan
        assert service.decisions.about(plan.plan_id) == []
    with login(operations.engine, LIFECYCLE, APPROVER) as uri, Operations.open(uri) as person:
        assert person.plans.approve(plan.plan_id, "bob", "looked").approved_by == "bob"


def test_what_is_approved_keeps_its_id_and_its_scope(operations: Operations, make_plan: MakePlan, thaw_id: str) -> None:
    plan = operations.plans.seal(make_plan())
    operations.plans.approve(plan.plan_id, "ada", "looked")
    with login(operations.engine, LIFECYCLE, APPROVER) as uri, Operations.open(uri) as other:
        other.thaws.approve(thaw_id, "bob", "")
    with login(operations.engine, LIFECYCLE) as uri, Operations.open(uri) as service:
        for change in (
            f"UPDATE lifecycle.plans SET plan_id = 'x' WHERE plan_id = '{plan.plan_id}'",
            f"UPDATE lifecycle.plans SET files_location = 'file:/x' WHERE plan_id = '{plan.plan_id}'",
            f"UPDATE lifecycle.thaws SET thaw_id = 'x' WHERE thaw_id = '{thaw_id}'",
            f"UPDATE lifecycle.thaws SET snapshot_ids = '{{1,2}}' WHERE thaw_id = '{thaw_id}'",
            f"UPDATE lifecycle.thaws SET days = 999 WHERE thaw_id = '{thaw_id}'",
            "UPDATE lifecycle.locks SET name = 'x'",
        ):
            with pytest.raises(DBAPIError, match=r"never changes|only ever added to"), service.engine.begin() as it:
                it.exec_driver_sql(change)


def test_no_false_word_about_a_users_name_makes_a_second_account(operations: Operations) -> None:
    with login(operations.engine, LIFECYCLE, APPROVER) as uri, Operations.open(uri) as one:
        for number, said in enumerate(("approved_from = NULL", "approved_from = 'bob@elsewhere'")):
            thaw_id = f"thaw-{uuid4().hex}-{number}"
            _request(one, thaw_id)
            with pytest.raises(IntegrityError, match="thaws_second_account"), one.engine.begin() as connection:
                connection.execute(
                    text(
                        f"UPDATE lifecycle.thaws SET approved_by = 'bob', approved_at = now(), {said} "
                        f"WHERE thaw_id = '{thaw_id}'"
                    )
                )


def test_no_role_may_call_what_runs_as_its_owner(operations: Operations) -> None:
    open_to_all = text(
        "SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace('lifecycle') "
        "AND has_function_privilege('public', oid, 'EXECUTE')"
    )
    with operations.engine.connect() as connection:
        assert connection.execute(open_to_all).all() == []


# --- heartbeats and locks ---------------------------------------------------------------------------------------------


def test_an_ingest_role_cannot_end_a_colleagues_heartbeat(operations: Operations, table_uuid: str) -> None:
    with login(operations.engine, INGEST) as one, login(operations.engine, INGEST) as other:
        mine, colleague = create_engine(one), create_engine(other)
        beats = Heartbeats(mine)
        began = beats.beat(table_uuid, "a.b", "w", session="s")
        with colleague.connect() as connection:
            for attack in (
                "DELETE FROM lifecycle.heartbeats WHERE table_uuid = :t",
                "UPDATE lifecycle.heartbeats SET expires_at = '2000-01-01Z' WHERE table_uuid = :t",
                "UPDATE lifecycle.heartbeats SET prefix = 'elsewhere' WHERE table_uuid = :t",
            ):
                assert connection.execute(text(attack), {"t": table_uuid}).rowcount == 0
            # It sees it: what is not seen is not protected.
            seen = text("SELECT count(*) FROM lifecycle.heartbeats WHERE table_uuid = :t")
            assert connection.execute(seen, {"t": table_uuid}).scalar_one() == 1
            connection.commit()
        with pytest.raises(Refused, match=r"heartbeat of writer w.*table a\.b.*a writer id of your own"):
            Heartbeats(colleague).beat(table_uuid, "a.b", "w", session="s")
        with pytest.raises(DBAPIError, match="permission denied"), colleague.connect() as connection:
            connection.execute(text("TRUNCATE lifecycle.heartbeats"))
        (found,) = operations.heartbeats.live(table_uuid)
        assert (found.started_at, found.prefix) == (began.started_at, None)
        assert beats.beat(table_uuid, "a.b", "w", session="s").started_at == began.started_at
        beats.stop(table_uuid, "w", session="s")
        assert operations.heartbeats.live(table_uuid) == []
        mine.dispose()
        colleague.dispose()


@pytest.mark.parametrize("until", ["infinity", "294276-01-01Z", "10000-01-01Z", "-infinity", "4713-01-01 BC"])
def test_no_time_of_a_heartbeat_stops_who_reads_them(operations: Operations, table_uuid: str, until: str) -> None:
    statement = text(
        "INSERT INTO lifecycle.heartbeats (table_uuid, table_name, writer_id, started_at, expires_at) "
        "VALUES (:t, 'a.b', 'w', least(now(), CAST(:until AS timestamptz)), :until)"
    )
    renewed = text("UPDATE lifecycle.heartbeats SET expires_at = :until WHERE table_uuid = :t")
    values = {"t": table_uuid, "until": until}
    with login(operations.engine, INGEST) as uri:
        writer = create_engine(uri)
        if until.startswith("-") or until.endswith("BC"):
            with pytest.raises(IntegrityError, match="heartbeats_times"), writer.begin() as connection:
                connection.execute(statement, values)
        else:
            with writer.begin() as connection:
                connection.execute(statement, values)
                connection.execute(renewed, values)
            (beat,) = operations.heartbeats.live(table_uuid)
            assert beat.expires_at == datetime(9999, 12, 30, tzinfo=UTC)
        writer.dispose()


def test_a_heartbeat_by_plain_sql_waits_for_the_deletion_batch(operations: Operations, table_uuid: str) -> None:
    ended: list[float] = []

    def write() -> None:
        with operations.engine.begin() as connection:
            connection.execute(
                text(
                    "INSERT INTO lifecycle.heartbeats (table_uuid, table_name, writer_id, expires_at) "
                    "VALUES (:t, 'a.b', 'w', clock_timestamp() + interval '10 s')"
                ),
                {"t": table_uuid},
            )
        ended.append(time.monotonic())

    with table_lock(operations.engine, table_uuid):
        thread = threading.Thread(target=write)
        thread.start()
        time.sleep(1.0)
        assert not ended
        assert operations.heartbeats.live(table_uuid) == []
    thread.join()
    (beat,) = operations.heartbeats.live(table_uuid)
    # The wait is not taken off its time.
    assert beat.expires_at - beat.started_at >= timedelta(seconds=9.9)
    # Renewing waits for nothing.
    with table_lock(operations.engine, table_uuid), operations.engine.begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '200ms'"))
        connection.execute(
            text(
                "INSERT INTO lifecycle.heartbeats (table_uuid, table_name, writer_id, expires_at) VALUES "
                "(:t, 'a.b', 'w', clock_timestamp() + interval '90 s') ON CONFLICT (table_uuid, writer_id, session) "
                "DO UPDATE SET last_beat_at = clock_timestamp(), expires_at = EXCLUDED.expires_at"
            ),
            {"t": table_uuid},
        )
    assert operations.heartbeats.live(table_uuid)[0].started_at == beat.started_at


def test_no_login_without_rights_can_keep_a_table_busy(operations: Operations, table_uuid: str) -> None:
    with login(operations.engine) as nobody, login(operations.engine, INGEST) as ingest:
        for uri in (nobody, ingest):
            engine = create_engine(uri)
            with engine.connect() as connection:
                for attack in (
                    "INSERT INTO lifecycle.locks VALUES (:name)",
                    "SELECT * FROM lifecycle.locks WHERE name = :name FOR SHARE",
                    "LOCK TABLE lifecycle.locks IN ACCESS SHARE MODE",
                ):
                    with pytest.raises(DBAPIError, match="permission denied"):
                        connection.execute(text(attack), {"name": f"table:{table_uuid}"})
                    connection.rollback()
            engine.dispose()
    operations.holds.place(table_uuid, "a.b", "legal", "case", timeout=5)


def test_who_waits_for_a_lock_learns_who_has_it(operations: Operations, table_uuid: str) -> None:
    me = operations.engine.url.username
    with table_lock(operations.engine, table_uuid):
        for wait in (
            lambda: operations.holds.place(table_uuid, "a.b", "legal", "case", timeout=0.2),
            lambda: operations.heartbeats.beat(table_uuid, "a.b", "w", timeout=0.2),
            lambda: table_lock(operations.engine, table_uuid, 0.2).__enter__(),
        ):
            with pytest.raises(Busy, match=rf"session \d+ of {me}, artemis-lifecycle"):
                wait()


def test_a_starter_does_not_wait_for_ever_for_a_lock_that_any_login_can_take(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("artemis_lifecycle.operations.locks.STARTERS_WAIT", 0.3)
    with operations.engine.begin() as first:
        starters_lock(first, "artemis-migrate")
        with pytest.raises(Busy, match=r"artemis-migrate.*session \d+"), operations.engine.begin() as second:
            starters_lock(second, "artemis-migrate")
