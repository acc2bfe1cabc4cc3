"""The schema of the first version: tables, and the rules that apply to every client of the database.

The tables are derived from the records (`operations/tables.py`). Until the first release, this revision changes with
them. From the release on, it is frozen with its own statements, and changes are made by later revisions.
"""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import ANALYST, APPROVER, INGEST, LIFECYCLE, role_statements
from artemis_lifecycle.operations.tables import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _member(role: str) -> str:
    """SQL: whether the logged-in role has `role`; no error if the role does not exist."""
    return f"coalesce(pg_has_role(session_user, to_regrole('{role}'), 'MEMBER'), false)"


_OWNS = "pg_has_role(session_user, (SELECT nspowner FROM pg_namespace WHERE nspname = 'lifecycle'), 'MEMBER')"

_APPROVED = {"plans": ("approved", "lost_approved"), "scans": ("approved",), "thaws": ("approved",)}
"""The columns `<name>_by`, `<name>_at` and `<name>_why`, any of which a reader may use."""

_SCOPE = {
    "plans": ("plan_id", "content_id", "table_uuid", "files_location", "base_metadata_location"),
    "scans": ("scan_id", "table_uuid", "files_location", "kind"),
    "thaws": ("thaw_id", "table_uuid", "files_location", "snapshot_ids", "days", "case_id", "reason"),
}


def _of(row: str, name: str) -> str:
    return ", ".join(f"{row}.{name}_{part}" for part in ("by", "at", "why"))


_LOCKS = (
    # For writers and holds in any language: when they become active, no deletion batch is between its last check and
    # its deletes.
    """
    CREATE FUNCTION lifecycle.take_table_lock(table_uuid TEXT) RETURNS void LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        LOOP
            INSERT INTO lifecycle.locks (name) VALUES ('table:' || table_uuid) ON CONFLICT DO NOTHING;
            PERFORM 1 FROM lifecycle.locks WHERE name = 'table:' || table_uuid FOR UPDATE;
            EXIT WHEN FOUND;
        END LOOP;
    END $$
    """,
    # If a row were renamed, sessions that wait for it would wait for nothing. Who deletes one lets them wait for a new
    # one; only the trigger of heartbeats does.
    """
    CREATE FUNCTION lifecycle.lock_stays() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'DELETE' AND pg_trigger_depth() > 1 THEN
            RETURN NULL;
        END IF;
        RAISE EXCEPTION 'lifecycle.locks is only ever added to' USING ERRCODE = 'insufficient_privilege';
    END $$
    """,
    "CREATE TRIGGER lock_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON lifecycle.locks FOR EACH STATEMENT "
    "EXECUTE FUNCTION lifecycle.lock_stays()",
    """
    CREATE FUNCTION lifecycle.hold_begins() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        NEW.table_uuid := lower(NEW.table_uuid);
        PERFORM lifecycle.take_table_lock(NEW.table_uuid);
        RETURN NEW;
    END $$
    """,
    "CREATE TRIGGER hold_begins BEFORE INSERT ON lifecycle.holds FOR EACH ROW EXECUTE FUNCTION lifecycle.hold_begins()",
)

_HEARTBEATS = (
    """
    CREATE FUNCTION lifecycle.heartbeat_beats() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        began TIMESTAMPTZ := clock_timestamp();
        waited INTERVAL;
        comes_alive BOOLEAN;
    BEGIN
        -- One uuid has one spelling here.
        NEW.table_uuid := lower(NEW.table_uuid);
        IF TG_OP = 'INSERT' THEN
            IF NEW.session = '' AND NEW.prefix IS NOT NULL THEN
                -- The documented statement renews a row by its key: it must not be that of a run with another prefix.
                NEW.session := '/' || md5(NEW.prefix);
            END IF;
            -- INSERT … ON CONFLICT DO UPDATE renews what is there.
            comes_alive := NOT EXISTS (
                SELECT FROM lifecycle.heartbeats AS known WHERE known.table_uuid = NEW.table_uuid
                AND known.writer_id = NEW.writer_id AND known.session = NEW.session
                AND known.prefix IS NOT DISTINCT FROM NEW.prefix AND known.expires_at > began
            );
        ELSE
            comes_alive := OLD.expires_at <= began OR NEW.prefix IS DISTINCT FROM OLD.prefix
                OR NEW.table_uuid <> OLD.table_uuid;
        END IF;
        IF comes_alive THEN
            PERFORM lifecycle.take_table_lock(NEW.table_uuid);
            waited := clock_timestamp() - began;
            NEW.started_at := least(NEW.started_at + waited, clock_timestamp());
            NEW.expires_at := NEW.expires_at + waited;
        END IF;
        IF TG_OP = 'UPDATE' AND OLD.login IS NULL THEN
            -- Of before this column: whose it is, is not known, so that it can be renewed only.
            NEW.expires_at := greatest(NEW.expires_at, OLD.expires_at);
            NEW.prefix := OLD.prefix;
            NEW.table_uuid := OLD.table_uuid;
        END IF;
        -- For ever, as far as a driver can read it.
        NEW.expires_at := least(NEW.expires_at, TIMESTAMPTZ '9999-12-30 00:00:00+00');
        NEW.login := session_user;
        RETURN NEW;
    END $$
    """,
    "CREATE TRIGGER heartbeat_beats BEFORE INSERT OR UPDATE ON lifecycle.heartbeats FOR EACH ROW "
    "EXECUTE FUNCTION lifecycle.heartbeat_beats()",
    # A heartbeat can name any uuid: its lock goes with it, unless there is such a table, or somebody has the lock.
    """
    CREATE FUNCTION lifecycle.heartbeat_ends() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF NOT EXISTS (SELECT FROM lifecycle.known_tables AS known WHERE known.table_uuid = OLD.table_uuid)
            AND NOT EXISTS (SELECT FROM lifecycle.heartbeats AS other WHERE other.table_uuid = OLD.table_uuid)
        THEN
            DELETE FROM lifecycle.locks AS l WHERE l.name IN (
                SELECT e.name FROM lifecycle.locks AS e WHERE e.name = 'table:' || OLD.table_uuid
                FOR UPDATE SKIP LOCKED);
        END IF;
        RETURN NULL;
    END $$
    """,
    "CREATE TRIGGER heartbeat_ends AFTER DELETE ON lifecycle.heartbeats FOR EACH ROW "
    "EXECUTE FUNCTION lifecycle.heartbeat_ends()",
    "ALTER TABLE lifecycle.heartbeats ENABLE ROW LEVEL SECURITY",
    # Everyone who may read the table sees every row of it: a writer that is not visible would lose its files.
    "CREATE POLICY heartbeats_seen ON lifecycle.heartbeats FOR SELECT USING (true)",
    "CREATE POLICY heartbeats_begun ON lifecycle.heartbeats FOR INSERT WITH CHECK (login = session_user)",
    # A row from before this column is taken over by its writer's next beat; a lapsed one no longer protects anything.
    "CREATE POLICY heartbeats_renewed ON lifecycle.heartbeats FOR UPDATE "
    "USING (login = session_user OR login IS NULL OR expires_at <= clock_timestamp()) "
    "WITH CHECK (login = session_user)",
    "CREATE POLICY heartbeats_ended ON lifecycle.heartbeats FOR DELETE "
    f"USING (login = session_user OR {_member(LIFECYCLE)})",
)

_DECISIONS = (
    # The server, not the client, sets what it knows about the account.
    """
    CREATE FUNCTION lifecycle.decision_is_made() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        NEW.decision_id := nextval('lifecycle.decisions_decision_id_seq');
        NEW.login := session_user;
        NEW.address := host(inet_client_addr());
        NEW.decided_at := clock_timestamp();
        RETURN NEW;
    END $$
    """,
    "CREATE TRIGGER decision_is_made BEFORE INSERT ON lifecycle.decisions FOR EACH ROW "
    "EXECUTE FUNCTION lifecycle.decision_is_made()",
    """
    CREATE FUNCTION lifecycle.decision_stays() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'lifecycle.decisions is only ever added to' USING ERRCODE = 'insufficient_privilege';
    END $$
    """,
    "CREATE TRIGGER decision_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON lifecycle.decisions FOR EACH STATEMENT "
    "EXECUTE FUNCTION lifecycle.decision_stays()",
)

_SENT = ("known_tables", "seen_pointers", "table_locations", "holds", "jobs", "quarantines")

_OUTBOX = (
    # In the same transaction, whoever writes: a backup that is put back must not forget it.
    """
    CREATE FUNCTION lifecycle.send_state() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        state JSONB := to_jsonb(NEW);
        was TEXT;
    BEGIN
        IF TG_OP = 'UPDATE' THEN
            -- Seen again as it was.
            IF state - 'last_seen' = to_jsonb(OLD) - 'last_seen' THEN
                RETURN NULL;
            END IF;
            was := nullif(to_jsonb(OLD) ->> 'table_name', state ->> 'table_name');
        END IF;
        INSERT INTO lifecycle.outbox (of_table, state, was) VALUES (TG_TABLE_NAME, state, was);
        RETURN NULL;
    END $$
    """,
    *(
        f"CREATE TRIGGER state_is_sent AFTER INSERT OR UPDATE ON lifecycle.{table} FOR EACH ROW "
        "EXECUTE FUNCTION lifecycle.send_state()"
        for table in _SENT
    ),
)

_APPROVALS = (
    f"""
    CREATE FUNCTION lifecycle.approver_approves() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF NOT ({_OWNS} OR {_member(APPROVER)}) THEN
            RAISE EXCEPTION 'role % may not approve', session_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'GRANT {APPROVER} to it';
        END IF;
        RETURN NEW;
    END $$
    """,
    *(
        f"CREATE TRIGGER approver_approves_{name} BEFORE UPDATE ON lifecycle.{table} FOR EACH ROW WHEN "
        f"(({_of('NEW', name)}) IS DISTINCT FROM ({_of('OLD', name)}) AND NOT ({_of('NEW', name)}) IS NULL) "
        "EXECUTE FUNCTION lifecycle.approver_approves()"
        for table, names in _APPROVED.items()
        for name in names
    ),
    *(
        f"CREATE TRIGGER approver_inserts_{name} BEFORE INSERT ON lifecycle.{table} FOR EACH ROW WHEN "
        f"(NOT ({_of('NEW', name)}) IS NULL) EXECUTE FUNCTION lifecycle.approver_approves()"
        for table, names in _APPROVED.items()
        for name in names
    ),
    f"""
    CREATE FUNCTION lifecycle.thaw_is_decided() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            NEW.requested_login := session_user;
            NEW.approved_login := CASE WHEN NEW.approved_at IS NOT NULL THEN session_user END;
        ELSE
            NEW.requested_login := OLD.requested_login;
            NEW.requested_from := OLD.requested_from;
            NEW.requester := OLD.requester;
            IF NEW.approved_at IS NOT NULL AND OLD.approved_at IS NULL AND NOT ({_OWNS})
                AND OLD.requested_login IS NOT DISTINCT FROM session_user
            THEN
                -- Which user of an operating system it is, is the client's word: enough for the owner, who is trusted.
                RAISE check_violation USING MESSAGE = 'thaws_second_account: ' || session_user || ' asked for it';
            END IF;
            NEW.approved_login := CASE
                WHEN NEW.approved_at IS NOT DISTINCT FROM OLD.approved_at THEN OLD.approved_login
                WHEN NEW.approved_at IS NOT NULL THEN session_user
            END;
        END IF;
        RETURN NEW;
    END $$
    """,
    "CREATE TRIGGER thaw_is_decided BEFORE INSERT OR UPDATE ON lifecycle.thaws FOR EACH ROW "
    "EXECUTE FUNCTION lifecycle.thaw_is_decided()",
    # What was approved is what is done: ids never change, nor does the scope of what is approved.
    """
    CREATE FUNCTION lifecycle.approved_stays() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        old_row JSONB := to_jsonb(OLD);
        new_row JSONB := to_jsonb(NEW);
        name TEXT;
    BEGIN
        IF old_row -> TG_ARGV[0] <> new_row -> TG_ARGV[0] THEN
            RAISE EXCEPTION 'the id of %.% never changes', TG_TABLE_NAME, TG_ARGV[0]
            USING ERRCODE = 'insufficient_privilege';
        END IF;
        IF coalesce(old_row ->> 'approved_at', old_row ->> 'lost_approved_at') IS NULL
            OR coalesce(new_row ->> 'approved_at', new_row ->> 'lost_approved_at') IS NULL
        THEN
            RETURN NEW;
        END IF;
        FOREACH name IN ARRAY TG_ARGV LOOP
            IF old_row -> name IS DISTINCT FROM new_row -> name THEN
                RAISE EXCEPTION '% of what is approved in % never changes', name, TG_TABLE_NAME
                USING ERRCODE = 'insufficient_privilege';
            END IF;
        END LOOP;
        RETURN NEW;
    END $$
    """,
    *(
        f"CREATE TRIGGER approved_stays BEFORE UPDATE ON lifecycle.{table} FOR EACH ROW "
        f"EXECUTE FUNCTION lifecycle.approved_stays({', '.join(map(repr, columns))})"
        for table, columns in _SCOPE.items()
    ),
)

_GRANTS = {
    INGEST: (
        "USAGE ON SCHEMA lifecycle",
        "SELECT, INSERT, UPDATE, DELETE ON TABLE lifecycle.heartbeats",
        # Opening reads the version before the first beat.
        "SELECT ON TABLE lifecycle.alembic_version, lifecycle.holds, lifecycle.identity",
    ),
    # Deletes what its retention deletes, but no record of decisions.
    LIFECYCLE: (
        "USAGE ON SCHEMA lifecycle",
        "SELECT, INSERT, UPDATE, DELETE ON TABLE lifecycle.batches, lifecycle.check_results, lifecycle.deep_snapshots, "
        "lifecycle.handoff_batches, lifecycle.heartbeats, lifecycle.leases, lifecycle.listings, "
        "lifecycle.rest_commits, lifecycle.run_times, lifecycle.steps, lifecycle.live_sets, "
        "lifecycle.live_set_references, lifecycle.live_versions, lifecycle.live_contents, lifecycle.swept_tables, "
        "lifecycle.base_locations, lifecycle.known_tables, lifecycle.outbox, lifecycle.seen_pointers, "
        "lifecycle.sent_files",
        "SELECT, INSERT, UPDATE ON TABLE lifecycle.catalog_looks, lifecycle.cold_losses, lifecycle.cold_scrubs, "
        "lifecycle.deep_moves, "
        "lifecycle.health, lifecycle.held_bytes, lifecycle.holds, lifecycle.jobs, "
        "lifecycle.ledger_progress, "
        "lifecycle.locks, lifecycle.paces, lifecycle.pauses, lifecycle.plans, lifecycle.publications, "
        "lifecycle.quarantines, lifecycle.restores, lifecycle.scans, lifecycle.step_totals, "
        "lifecycle.tags, lifecycle.thaws, "
        "lifecycle.unmet_snapshots, "
        "lifecycle.waits, lifecycle.watched_tables",
        "SELECT, INSERT, DELETE ON TABLE lifecycle.gate_attempts, lifecycle.health_history, lifecycle.swap_attempts",
        "SELECT, INSERT ON TABLE lifecycle.decisions, lifecycle.settled_metadata, lifecycle.table_locations, "
        "lifecycle.verdicts",
        "SELECT ON TABLE lifecycle.alembic_version, lifecycle.identity",
        "USAGE, SELECT ON SEQUENCE lifecycle.gate_attempts_attempt_id_seq, lifecycle.lease_token, "
        "lifecycle.plan_order, lifecycle.steps_step_id_seq, lifecycle.tags_tag_record_id_seq, "
        "lifecycle.verdicts_verdict_id_seq",
        "USAGE ON SEQUENCE lifecycle.decisions_decision_id_seq",
    ),
    APPROVER: ("USAGE ON SCHEMA lifecycle",),
    ANALYST: (
        "SELECT ON TABLE lifecycle.seen_pointers, lifecycle.settled_metadata, lifecycle.swap_attempts, "
        "lifecycle.table_locations",
    ),
}

_STATEMENTS = (
    *_LOCKS,
    *_HEARTBEATS,
    *_DECISIONS,
    *_OUTBOX,
    *_APPROVALS,
    "INSERT INTO lifecycle.identity (operations_id) VALUES (gen_random_uuid()::text)",
    # A function that runs as its owner is for no other login to call, or to use as a trigger of its own table.
    "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA lifecycle FROM PUBLIC",
    *role_statements(_GRANTS),
)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
    for statement in _STATEMENTS:
        op.execute(statement)
