"""docs/security.md promises only what a test holds: each of its sentences of what is enforced names its tests here."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "security.md"
PROMISES = {
    "**Secrets** reach Spark by a properties file": ["spark: no_secret_is_on_sparks_command_line_nor_in_a_log"],
    "`repr` of a configuration": ["config: a_configuration_shows_no_secret_of_its_own"],
    "a history of decisions that is only added to": ["accounts: what_was_decided_can_be_neither_changed_nor_forged"],
    "approvals by members of `artemis_approver` only": ["accounts: only_who_has_the_role_may_approve"],
    "a second name and a second account for a thaw": ["privileges: a_thaw_is_never_approved_by_who_asked_for_it"],
    "heartbeats by login": ["accounts: an_ingest_role_cannot_end_a_colleagues_heartbeat"],
    "table locks that only": ["accounts: no_login_without_rights_can_keep_a_table_busy"],
    "**The cold catalog** refuses writers": ["guard: pyiceberg_and_plain_sql_cannot_change_it"],
    "in the transaction of every publication": ["guard: a_publication_verifies_the_guard_in_its_own_transaction"],
    "one that only reads is warned": [
        "guard: a_role_that_may_not_restore_the_guard_is_refused_and_an_analyst_is_warned"
    ],
    "**Reading** is bounded before memory is allocated": [
        "bounded: a_codec_is_undone_up_to_the_allowance_and_allocates_no_more",
        "bounded: executors_keep_to_the_limits_of_lifecycle_yaml",
    ],
    "bounded before it is parsed": [
        "hostile_histories: json_of_few_bytes_and_many_objects_is_refused_before_it_is_parsed",
        "answers: an_answer_of_a_server_is_bounded_before_it_is_parsed",
    ],
    "Parents that form a cycle": [
        "hostile_histories: a_cycle_of_parents_ends_every_walk_over_them",
        "hostile_histories: a_time_that_no_calendar_has_keeps_no_question_from_its_answer",
    ],
    "`RLIMIT_AS` in `make test`": ["bounded: every_reader_under_a_memory_limit_reads_a_file_or_names_it"],
    "every connection to Postgres has a limit": [
        "hanging: only_one_module_connects_to_postgres",
        "hanging: a_statement_of_a_server_that_hangs_ends_in_time_for_each_of_its_callers",
    ],
    "bodies share 128 MiB": ["bounds: the_bodies_of_all_requests_share_one_budget"],
    "at most 500,000 values": ["bounds: a_small_body_that_becomes_many_objects_costs_little_memory"],
    "one bounded record and one bounded answer": ["bounds: many_refused_snapshots_are_one_record_and_one_short_answer"],
    "a deadline for its head, body": ["bounds: a_body_and_a_head_that_do_not_arrive_end_the_request"],
    "that hangs delays a refusal by seconds": [
        "bounds: a_postgres_that_hangs_delays_no_refusal_and_nothing_that_needs_no_pass"
    ],
    "names and locations of 4,096 characters": ["gate: what_any_login_gives_the_gate_is_bounded"],
    "cannot become a view": ["gate: a_gated_table_does_not_become_a_view_without_a_pass"],
    "deletes count as overwrites": ["gate: an_overwrite_by_delete_and_append_is_for_the_same_people_in_the_database"],
    "markup and HTML in Markdown": ["hostile_texts: an_error_is_one_line_and_its_parts_stay_as_they_are"],
    "mail, hosts of common domains) are code": [
        "alerts: texts_of_others_are_no_mention_link_or_markup_in_an_alert_and_it_links_to_the_pages"
    ],
    "only to folders that root owns all the way": [
        "postgres: in_a_home_that_others_can_change_root_writes_nothing",
        "postgres: a_link_planted_where_root_places_postgres_is_not_followed",
    ],
    "warnings of windows, graces and ages of zero": ["config: each_delay_of_zero_is_a_warning_where_it_is_set"],
    "what cannot work (expirations over REST": ["config: a_catalog_that_cannot_work_is_refused_at_once"],
}


def test_every_sentence_of_what_is_enforced_has_a_test() -> None:
    page = re.sub(r"\s+", " ", PAGE.read_text())
    known: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        named = re.findall(r"^def test_(\w+)\(", path.read_text(), re.MULTILINE)
        known.setdefault(path.stem.removeprefix("test_"), set()).update(named)
    known["spark"] = known["session"]
    for promise, tests in PROMISES.items():
        assert promise in page, f"docs/security.md no longer says: {promise}"
        for test in tests:
            module, _, name = test.partition(": ")
            assert name in known[module], f"{promise}: there is no test {name} in test_{module}.py"
    enforced = PAGE.read_text().partition("## What is enforced, and where")[2].partition("## What is not enforced")[0]
    for lead in re.findall(r"^\*\*(.+?)\*\*", enforced, re.MULTILINE):
        paragraph = re.sub(r"\s+", " ", enforced.partition(f"**{lead}**")[2].partition("\n\n**")[0])
        assert any(each.replace(f"**{lead}**", "") in paragraph for each in PROMISES), f"no test for: {lead}"
