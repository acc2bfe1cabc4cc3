"""What the gate installs in the database: its tables, and its functions in PL/pgSQL.

`problems` is `contracts.lineage_problems` in the database's language: the same problems, in the same words and order,
of the same data. What does not depend on a table (the keys, their lengths and forms) is written into its body from
`contracts.summary`; a property test compares both functions.
"""

from __future__ import annotations

from artemis_lifecycle.catalogs.triggers import Function, Parts, Trigger
from artemis_lifecycle.contracts.requirements import DELETES_HINT
from artemis_lifecycle.contracts.summary import (
    INPUT_SNAPSHOTS,
    KEYS,
    LONGEST,
    LONGEST_INPUTS,
    OPERATION,
    PATTERNS,
    TRIGGER,
)
from artemis_lifecycle.operations.roles import ANALYST, INGEST, LIFECYCLE

VERSION = 3
"""The version of the functions below; an older installation is upgraded by enabling the gate again."""

SCHEMA = "artemis_gate"
PASS_MINUTES = 10
"""Minutes, by Postgres' clock, for which a pass can be used."""


def _literal(text: str) -> str:
    # With backslashes doubled: whether a plain literal keeps them depends on a setting of the session.
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _form(place: int, key: str) -> str:
    longest = LONGEST_INPUTS if key == INPUT_SNAPSHOTS else LONGEST
    form = _literal(f"^(?:{PATTERNS[key]})$") if key in PATTERNS else "NULL"
    return f"({place}, {_literal(key)}, {longest}, {form})"


_FORMS = ", ".join(_form(place, key) for place, key in enumerate(KEYS))
_CONTROL = _literal(r"[\x01-\x1f\x7f]")
_SPACES = "".join(each for each in map(chr, range(1, 0x3001)) if each.isspace())
"""What Python calls white space; the last one is U+3000."""

_VALUE_OF = """
    BEGIN
        RETURN btrim(coalesce(summary ->> key, ''), ' ');
    END """

# `identifier.quoted`, of each level of the namespace and of the name.
_IDENTIFIER = f"""
    BEGIN
        RETURN (
            SELECT string_agg(
                CASE WHEN part <> '' AND part = btrim(part, {_literal(_SPACES)}) AND position('.' IN part) = 0
                     AND position('`' IN part) = 0 THEN part ELSE '`' || replace(part, '`', '``') || '`' END,
                '.' ORDER BY place
            )
            FROM unnest(CASE namespace WHEN '' THEN ARRAY['', name] ELSE string_to_array(namespace, '.') || name END)
                WITH ORDINALITY AS parts (part, place)
        );
    END """

_RULE_OF = """
    BEGIN
        RETURN QUERY
            SELECT r.mode, r.requirements
            FROM rules AS r, identifier(namespace, name) AS table_identifier
            WHERE r.catalog_name = catalog
              AND CASE WHEN r.exact THEN r.pattern = table_identifier
                       ELSE table_identifier ~ ('^(?:' || r.pattern || ')$') END
            ORDER BY r.rank LIMIT 1;
    END """

_MODE_OF = """
    BEGIN
        RETURN coalesce((SELECT r.mode FROM rule_of(catalog, namespace, name) AS r), 'none');
    END """

_PROBLEMS = f"""
    DECLARE
        found TEXT[] := '{{}}';
        operation CONSTANT TEXT := value_of(summary, '{OPERATION}');
        trigger_type CONSTANT TEXT := value_of(summary, '{TRIGGER}');
    BEGIN
        found := found || ARRAY(
            SELECT 'required key ' || r.key || ' is missing'
            FROM jsonb_array_elements_text(requirements -> 'required') WITH ORDINALITY AS r (key, place)
            WHERE value_of(summary, r.key) = '' ORDER BY r.place);
        found := found || ARRAY(
            SELECT f.problem FROM (
                SELECT e.place, CASE
                    WHEN length(e.value) > e.longest
                        THEN e.key || ' has ' || length(e.value) || ' characters, more than ' || e.longest
                    WHEN e.value ~ {_CONTROL} THEN e.key || ' has a control character'
                    WHEN e.form IS NOT NULL AND btrim(e.value, ' ') <> '' AND btrim(e.value, ' ') !~ e.form
                        THEN e.key || '=' || left(e.value, 80) || ' is malformed'
                    END AS problem
                FROM (
                    SELECT k.place, k.key, k.longest, k.form, coalesce(summary ->> k.key, '') AS value
                    FROM (VALUES {_FORMS}) AS k (place, key, longest, form)
                ) AS e
            ) AS f WHERE f.problem IS NOT NULL ORDER BY f.place);
        IF operation <> '' AND NOT requirements -> 'operations' ? operation THEN
            found := found || ('operation ' || left(operation, 80) || ' is not one of '
                || array_to_string(ARRAY(SELECT jsonb_array_elements_text(requirements -> 'operations')), ', '));
        END IF;
        IF trigger_type <> '' AND NOT requirements -> 'triggers' ? trigger_type THEN
            found := found || ('{TRIGGER} ' || left(trigger_type, 80) || ' is not one of '
                || array_to_string(ARRAY(SELECT jsonb_array_elements_text(requirements -> 'triggers')), ', '));
        END IF;
        found := found || ARRAY(
            SELECT (p.pair ->> 0) || '=' || left(value_of(summary, p.pair ->> 0), 80) || ' does not match '
                || (p.pair ->> 1)
            FROM jsonb_array_elements(requirements -> 'patterns') WITH ORDINALITY AS p (pair, place)
            WHERE value_of(summary, p.pair ->> 0) <> ''
              AND value_of(summary, p.pair ->> 0) !~ ('^(?:' || (p.pair ->> 1) || ')$')
            ORDER BY p.place);
        found := found || ARRAY(
            SELECT (n.rule ->> 0) || '=' || (n.rule ->> 1) || ' needs ' || m.keys
            FROM jsonb_array_elements(requirements -> 'needs') WITH ORDINALITY AS n (rule, place),
                LATERAL (
                    SELECT string_agg(k.key, ', ' ORDER BY k.place) AS keys
                    FROM jsonb_array_elements_text(n.rule -> 2) WITH ORDINALITY AS k (key, place)
                    WHERE value_of(summary, k.key) = ''
                ) AS m
            WHERE value_of(summary, n.rule ->> 0) = (n.rule ->> 1) AND m.keys IS NOT NULL ORDER BY n.place);
        found := found || ARRAY(
            SELECT (p.rule ->> 1) || '=' || left(value_of(summary, p.rule ->> 1), 80) || ' may not ' || operation
                || '; permitted: ' || array_to_string(ARRAY(SELECT jsonb_array_elements_text(p.rule -> 2)), ', ')
                || CASE operation WHEN 'delete' THEN {_literal(DELETES_HINT)} ELSE '' END
            FROM jsonb_array_elements(requirements -> 'permitted') WITH ORDINALITY AS p (rule, place)
            WHERE operation = (p.rule ->> 0) AND NOT p.rule -> 2 ? value_of(summary, p.rule ->> 1)
            ORDER BY p.place);
        RETURN distinct_texts(found);
    END """

_DISTINCT_TEXTS = """
    BEGIN
        RETURN ARRAY(
            SELECT e.each FROM unnest(texts) WITH ORDINALITY AS e (each, place)
            GROUP BY e.each ORDER BY min(e.place));
    END """

_KEYS = ", ".join(map(_literal, ("snapshot-id", OPERATION, *KEYS)))
_LONGEST_NAME = 4096
"""Characters of a name or a location that any login may give."""
_LONGEST_SUMMARIES = 64 * 2**20
_MOST_PROBLEMS = 20
_REQUEST_PASS = f"""
    DECLARE
        rule RECORD;
        wrong TEXT[];
        refused BOOLEAN;
    BEGIN
        IF summaries IS NULL OR jsonb_typeof(summaries) <> 'array' THEN
            RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
                MESSAGE = 'the summaries of a commit must be a JSON array, with an object for each new snapshot';
        END IF;
        IF greatest(length(catalog), length(namespace), length(name), length(request_pass.base_location),
                    length(request_pass.metadata_location)) > {_LONGEST_NAME}
           OR pg_column_size(summaries) > {_LONGEST_SUMMARIES} THEN
            RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
                MESSAGE = 'a name or a location has over {_LONGEST_NAME} characters, or the summaries are too large';
        END IF;
        SELECT r.mode, r.requirements INTO rule FROM rule_of(catalog, namespace, name) AS r;
        IF NOT FOUND OR rule.mode = 'none' THEN
            RETURN '{{}}';
        END IF;
        wrong := distinct_texts(ARRAY(
            SELECT p.problem
            FROM jsonb_array_elements(summaries) WITH ORDINALITY AS s (summary, place),
                LATERAL unnest(problems(s.summary, rule.requirements)) WITH ORDINALITY AS p (problem, place)
            ORDER BY s.place, p.place));
        IF cardinality(wrong) > {_MOST_PROBLEMS} THEN
            wrong := wrong[1:{_MOST_PROBLEMS}] || ('and ' || cardinality(wrong) - {_MOST_PROBLEMS} || ' more problems');
        END IF;
        refused := rule.mode = 'reject' AND wrong <> '{{}}';
        -- A commit asks twice: before it writes anything, and for its swap. It is recorded once.
        IF refused OR (wrong <> '{{}}' AND request_pass.metadata_location IS NOT NULL) THEN
            INSERT INTO attempts (catalog_name, table_namespace, table_name, base_location, metadata_location,
                                  summaries, problems, refused)
            VALUES (catalog, namespace, name, request_pass.base_location, request_pass.metadata_location,
                    (SELECT coalesce(jsonb_agg(kept.lineage ORDER BY s.place), '[]')
                     FROM jsonb_array_elements(request_pass.summaries) WITH ORDINALITY AS s (summary, place),
                         LATERAL (SELECT jsonb_object_agg(k.key, left(s.summary ->> k.key, {LONGEST})) AS lineage
                                  FROM unnest(ARRAY[{_KEYS}]) AS k (key)
                                  WHERE s.summary ->> k.key IS NOT NULL) AS kept
                     WHERE s.place <= 10),
                    wrong, refused);
        END IF;
        IF refused THEN
            RETURN wrong;
        END IF;
        IF rule.mode = 'reject' AND request_pass.metadata_location IS NOT NULL THEN
            DELETE FROM passes AS p WHERE p.pass_id IN (
                SELECT e.pass_id FROM passes AS e
                WHERE e.granted_at < clock_timestamp() - INTERVAL '{PASS_MINUTES} minutes' FOR UPDATE SKIP LOCKED);
            INSERT INTO passes (catalog_name, table_namespace, table_name, base_location, metadata_location)
            VALUES (catalog, namespace, name, request_pass.base_location, request_pass.metadata_location);
        END IF;
        RETURN '{{}}';
    END """

# A column of views is missing in the schema of old catalogs, hence `to_jsonb`. A view has no snapshots; but a table
# that becomes one keeps readers that do not look at the column.
_GUARD = f"""
    DECLARE
        base TEXT;
        is_view BOOLEAN := coalesce(to_jsonb(NEW) ->> 'iceberg_type', 'TABLE') = 'VIEW';
    BEGIN
        IF TG_OP = 'UPDATE' THEN
            is_view := is_view AND coalesce(to_jsonb(OLD) ->> 'iceberg_type', 'TABLE') = 'VIEW';
        END IF;
        IF is_view OR mode_of(NEW.catalog_name, NEW.table_namespace, NEW.table_name) <> 'reject' THEN
            RETURN NEW;
        END IF;
        IF TG_OP = 'UPDATE' THEN
            IF (OLD.catalog_name, OLD.table_namespace, OLD.table_name, OLD.metadata_location,
                coalesce(to_jsonb(OLD) ->> 'iceberg_type', 'TABLE'))
               IS NOT DISTINCT FROM (NEW.catalog_name, NEW.table_namespace, NEW.table_name, NEW.metadata_location,
                coalesce(to_jsonb(NEW) ->> 'iceberg_type', 'TABLE')) THEN
                RETURN NEW;
            END IF;
            base := OLD.metadata_location;
        END IF;
        -- The swap consumes its pass: both are of one transaction.
        DELETE FROM passes AS p
        WHERE p.catalog_name = NEW.catalog_name AND p.table_namespace = NEW.table_namespace
          AND p.table_name = NEW.table_name AND p.base_location IS NOT DISTINCT FROM base
          AND p.metadata_location = NEW.metadata_location
          AND p.granted_at BETWEEN clock_timestamp() - INTERVAL '{PASS_MINUTES} minutes' AND clock_timestamp();
        IF NOT FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'insufficient_privilege',
                MESSAGE = 'the lineage gate refuses a commit to table '
                    || identifier(NEW.table_namespace, NEW.table_name) || ' of catalog ' || NEW.catalog_name
                    || ': it has no pass for ' || coalesce(NEW.metadata_location, 'a row without metadata'),
                HINT = 'commit through a catalog that validates lineage: GatedJdbcCatalog in Spark, GatedSqlCatalog '
                    || 'in pyiceberg, artemis gate serve for others (docs/lineage.md)';
        END IF;
        RETURN NEW;
    END """

_FORGET_ATTEMPTS = """
    DECLARE
        deleted BIGINT;
    BEGIN
        DELETE FROM attempts AS a WHERE a.catalog_name = catalog AND a.attempted_at < before;
        GET DIAGNOSTICS deleted = ROW_COUNT;
        RETURN deleted;
    END """

_NAME = "catalog TEXT, namespace TEXT, name TEXT"
PARTS = Parts(
    schema=SCHEMA,
    functions=(
        Function("value_of", "summary JSONB, key TEXT", "jsonb, text", "text", _VALUE_OF),
        Function("distinct_texts", "texts TEXT[]", "text[]", "text[]", _DISTINCT_TEXTS),
        Function("identifier", "namespace TEXT, name TEXT", "text, text", "text", _IDENTIFIER),
        Function("rule_of", _NAME, "text, text, text", "TABLE (mode TEXT, requirements JSONB)", _RULE_OF),
        Function("mode_of", _NAME, "text, text, text", "text", _MODE_OF),
        Function("problems", "summary JSONB, requirements JSONB", "jsonb, jsonb", "text[]", _PROBLEMS),
        Function(
            "request_pass",
            f"{_NAME}, base_location TEXT, metadata_location TEXT, summaries JSONB",
            "text, text, text, text, text, jsonb",
            "text[]",
            _REQUEST_PASS,
        ),
        Function(
            "forget_attempts",
            "catalog TEXT, before TIMESTAMPTZ",
            "text, timestamp with time zone",
            "bigint",
            _FORGET_ATTEMPTS,
        ),
        Function("guard_pointers", "", "", "trigger", _GUARD),
    ),
    triggers=(Trigger("artemis_gate", "iceberg_tables", "guard_pointers", 23),),
    own_tables=("catalogs", "rules", "passes", "attempts"),
    roles=(INGEST, LIFECYCLE, ANALYST),
)

_TABLE = "catalog_name TEXT NOT NULL, table_namespace TEXT NOT NULL, table_name TEXT NOT NULL"
_WHEN = "TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()"
TABLES = (
    f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
    f"CREATE TABLE IF NOT EXISTS {SCHEMA}.catalogs (catalog_name TEXT PRIMARY KEY, version INTEGER NOT NULL, "
    f"enabled_by TEXT NOT NULL DEFAULT session_user, enabled_at {_WHEN})",
    # Requirements without one of their lists would require nothing.
    f"CREATE TABLE IF NOT EXISTS {SCHEMA}.rules (catalog_name TEXT NOT NULL REFERENCES {SCHEMA}.catalogs "
    "ON DELETE CASCADE, rank INTEGER NOT NULL, entry TEXT NOT NULL, pattern TEXT NOT NULL, "
    "exact BOOLEAN NOT NULL, mode TEXT NOT NULL CHECK (mode IN ('reject', 'report', 'none')), "
    "requirements JSONB NOT NULL CHECK (requirements ?& "
    "ARRAY['required', 'operations', 'triggers', 'patterns', 'needs', 'permitted']), PRIMARY KEY (catalog_name, rank))",
    f"CREATE TABLE IF NOT EXISTS {SCHEMA}.passes (pass_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {_TABLE}, "
    f"base_location TEXT, metadata_location TEXT NOT NULL, granted_to TEXT NOT NULL DEFAULT session_user, "
    f"granted_at {_WHEN})",
    f"CREATE INDEX IF NOT EXISTS passes_of_a_location ON {SCHEMA}.passes (metadata_location)",
    f"CREATE INDEX IF NOT EXISTS passes_by_age ON {SCHEMA}.passes (granted_at)",
    f"CREATE TABLE IF NOT EXISTS {SCHEMA}.attempts (attempt_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
    f"attempted_at {_WHEN}, attempted_by TEXT NOT NULL DEFAULT session_user, application TEXT NOT NULL DEFAULT "
    f"current_setting('application_name'), {_TABLE}, base_location TEXT, metadata_location TEXT, "
    "summaries JSONB NOT NULL, problems TEXT[] NOT NULL, refused BOOLEAN NOT NULL)",
    f"CREATE INDEX IF NOT EXISTS attempts_of_a_catalog ON {SCHEMA}.attempts (catalog_name, attempted_at)",
)

_READS = f"SELECT ON TABLE {', '.join(f'{SCHEMA}.{name}' for name in ('catalogs', 'rules', 'attempts'))}"
_FORGETS = f"EXECUTE ON FUNCTION {SCHEMA}.forget_attempts(TEXT, TIMESTAMPTZ)"
GRANTS = {LIFECYCLE: (_READS, _FORGETS), ANALYST: (_READS,)}
# A gated catalog asks before every commit, also to tables that the gate does not govern. Whoever may write the pointer
# row of such a table could do so before there was a gate.
TO_EVERYBODY = (
    f"GRANT USAGE ON SCHEMA {SCHEMA} TO PUBLIC",
    f"GRANT EXECUTE ON FUNCTION {SCHEMA}.request_pass(TEXT, TEXT, TEXT, TEXT, TEXT, JSONB) TO PUBLIC",
    f"GRANT EXECUTE ON FUNCTION {SCHEMA}.mode_of(TEXT, TEXT, TEXT) TO PUBLIC",
)
