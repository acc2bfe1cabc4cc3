"""lifecycle.yaml decides deletions: what it says twice, by mistake or by the environment is never guessed."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import ConfigError


def _load(folder: Path, text: str, environment: dict[str, str] | None = None) -> LifecycleConfig:
    file = folder / "lifecycle.yaml"
    file.write_text(text)
    return load_config(file, environment or {})


def _problems(folder: Path, text: str, environment: dict[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        _load(folder, text, environment)
    return refused.value.problems


IN_THE_ENVIRONMENT = """\
catalogs:
  live:
    uri: postgresql+psycopg2://me:${PASSWORD}@${HOST}/db
    properties: {s3.secret-access-key: "${PASSWORD}", header.x: "a ${PASSWORD} b", dollars: "$${HOST} $5 $$"}
    roots: ["s3://${BUCKET}/a", s3://b/c]
  others:
    n: {type: nessie, uri: http://h/api/v2, warehouse: "s3://${BUCKET}/n", properties: {token: "${PASSWORD}"}}
reachability:
  threads: ${THREADS}
defaults: {retention: &kept {window: "${WINDOW}"}, lineage: {required: [operation, "${KEY}"]}}
tables:
  db.a: {retention: *kept}
  db.b: {retention: {<<: *kept, min_snapshots: 3}}
home: ${FOLDER}
"""
VARIABLES = {
    "PASSWORD": "hunter2-topsecret",
    "HOST": "pg.example.org",
    "BUCKET": "bucket-one",
    "THREADS": "5",
    "WINDOW": "7d",
    "KEY": "writer.id",
    "FOLDER": "topsecret-folder",
}


def test_every_value_takes_variables_from_the_environment_and_none_of_them_is_shown(tmp_path: Path) -> None:
    config = _load(tmp_path, IN_THE_ENVIRONMENT, VARIABLES)
    live, nessie = config.catalogs.live, config.catalogs.others["n"]
    assert live.uri == "postgresql+psycopg2://me:hunter2-topsecret@pg.example.org/db"
    assert live.properties["s3.secret-access-key"] == nessie.properties["token"] == "hunter2-topsecret"
    assert live.properties["header.x"] == "a hunter2-topsecret b" and live.properties["dollars"] == "${HOST} $5 $"
    assert live.roots == ("s3://bucket-one/a", "s3://b/c") and nessie.warehouse == "s3://bucket-one/n"
    assert config.reachability.threads == 5 and config.defaults.lineage.required == ("operation", "writer.id")
    assert config.policy("db.a").retention.window == timedelta(days=7) and config.home == tmp_path / "topsecret-folder"
    assert config.policy("db.b").retention.window == timedelta(days=7)
    for shown in (repr(config), str(live), f"{nessie}", repr(config.policy("db.a"))):
        assert "topsecret" not in shown and "pg.example.org" not in shown
    assert "${HOST}" in repr(live) and "a ${PASSWORD} b" in repr(live)


def test_a_secret_that_is_mounted_as_a_file_is_read_and_not_shown(tmp_path: Path) -> None:
    secret, empty = tmp_path / "pass word", tmp_path / "empty"
    secret.write_text("hunter3-topsecret\n"), empty.write_text("\n")
    config = _load(tmp_path, f"catalogs: {{live: {{uri: 'postgresql+psycopg2://me:${{file:{secret}}}@h/db'}}}}\n", {})
    assert config.catalogs.live.uri == "postgresql+psycopg2://me:hunter3-topsecret@h/db"
    assert "hunter3" not in repr(config)
    for place, why in (tmp_path / "absent", "No such file"), (empty, "is empty"), (tmp_path, "Is a directory"):
        (problem,) = _problems(tmp_path, f"home: x\noperations: {{root: '${{file:{place}}}'}}\n")
        assert problem.startswith("line 2: operations.root: ") and str(place) in problem and why in problem
    # A path from the working folder would name another file in another process.
    assert "${file:/PATH}" in _problems(tmp_path, "home: ${file:secret}\n")[0]


def test_each_part_may_have_an_address_of_its_own(tmp_path: Path) -> None:
    given = {"ARTEMIS_POSTGRES_URI": "postgresql://a/b", "ARTEMIS_COLD_URI": "postgresql://c/d"}
    config = _load(tmp_path, "home: x\n", given | {"ARTEMIS_OPERATIONS_URI": "postgresql://e/f"})
    assert [each and each.split("//")[1] for each in (config.catalogs.live.uri, config.catalogs.cold.uri)] == [
        "a/b",
        "c/d",
    ]
    assert config.operations.uri is not None and config.operations.uri.endswith("//e/f")


@pytest.mark.parametrize("environment", [{}, {"WINDOW": ""}])
@pytest.mark.parametrize("value", ["${WINDOW}", "'${WINDOW}'", '"7${WINDOW}"', ">-\n      ${WINDOW}"])
def test_a_variable_that_is_not_set_is_an_error_with_its_line(
    tmp_path: Path, value: str, environment: dict[str, str]
) -> None:
    text = (
        f"defaults:\n  retention:\n    window: {value}\ntables:\n  a.b: {{lineage: {{required: [x, '${{NONE}}']}}}}\n"
    )
    first, second = _problems(tmp_path, text, environment)
    assert re.match(r"line 3: defaults\.retention\.window: the environment variable WINDOW is (not set|empty)", first)
    assert second.partition(": ")[2] == "tables.a.b.lineage.required: the environment variable NONE is not set"


@pytest.mark.parametrize("value", ["${", "${}", "${A-B}", "${A:-x}", "x${1}"])
def test_a_reference_that_cannot_be_read_is_an_error(tmp_path: Path, value: str) -> None:
    assert "line 1: home: ${ begins the name" in _problems(tmp_path, f'home: "{value}"\n', {"A": "a"})[0]


def test_no_error_shows_what_came_from_the_environment(tmp_path: Path) -> None:
    text = (
        "defaults:\n  retention: {window: '${SECRET}', rule: '${SECRET}'}\n  quiet_window: {timezone: '${SECRET}'}\n"
        "operations: {root: '/${SECRET}'}\nquarantine: {root: '/${SECRET}/b'}\n"
    )
    with pytest.raises(ConfigError, match=r"line 2.*\$\{SECRET\}") as refused:
        _load(tmp_path, text, {"SECRET": "topsecret"})
    chain, error = [], refused.value
    while error is not None:
        chain.append(f"{error} {error!r}")
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    assert "topsecret" not in " ".join(chain)


TWICE = """\
tables:
  db.legal: {retention: {window: 7y}}
  db.own:
    retention: {window: 7y}
    cold_tier: {enabled: false}
    retention: {min_snapshots: 2}
  db.`legal`: {retention: {window: 30d}}
  db.own: {}
defaults: {retention: {window: 7y, window: 30d}, lineage: {triggers: {manual: [], manual: [x]}}}
prices: {classes: {STANDARD: {gb_month: 1}, "STANDARD": {gb_month: 2}}}
"""


def test_a_key_that_stands_twice_is_an_error_with_both_lines(tmp_path: Path) -> None:
    assert _problems(tmp_path, TWICE) == (
        "line 7: tables.db.`legal`: is another spelling of db.legal (lines 2 and 7): keep one of them",
        "line 8: tables.db.own: stands twice (lines 3 and 8): keep one of them",
        "line 9: defaults.lineage.triggers.manual: stands twice (lines 9 and 9): keep one of them",
        "line 9: defaults.retention.window: stands twice (lines 9 and 9): keep one of them",
        "line 10: prices.classes.STANDARD: stands twice (lines 10 and 10): keep one of them",
    )
    inner = "tables:\n  db.own:\n    retention: {window: 7y}\n    retention: {min_snapshots: 2}\n"
    assert "tables.db.own.retention: stands twice (lines 3 and 4)" in _problems(tmp_path, inner)[0]
    assert "tables: stands twice (lines 1 and 3)" in _problems(tmp_path, "tables:\n  a.b: {}\ntables:\n  a.c: {}\n")[0]
    merged = "defaults: {retention: &r {window: 7y}}\ntables:\n  a.b: {retention: {<<: *r, <<: *r}}\n"
    assert "stands twice" in _problems(tmp_path, merged)[0]
    both = _problems(tmp_path, "defaults: {quiet_window: {from: '01:00', start: '02:00'}}\n")
    assert both and "line 1" in both[0]


def test_a_configuration_made_in_python_has_one_entry_for_a_table_too() -> None:
    with pytest.raises(ValueError, match=r"db\.`legal`: is another spelling of db\.legal"):
        LifecycleConfig.model_validate({"tables": {"db.legal": {}, "db.`legal`": {}}})
    one = LifecycleConfig.model_validate({"tables": {"db.`legal`": {"retention": {"window": "7y"}}}})
    assert one.policy("db.legal").retention.window == one.policy("db.`legal`").retention.window == timedelta(days=2555)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("defaults: {quiet_window: {from: 22:00}}", r"YAML reads 22:00 as the number 1320: quote it"),
        ("defaults: {quiet_window: {from: 22:00, to: 23:30}}", r"1410: quote it"),
        ("defaults: {retention: {min_snapshots: 1:30}}", r"YAML reads 1:30 as the number 90: quote it"),
        ("defaults: {deletion: {max_files: 010}}", r"YAML reads 010 as the number 8"),
        ("defaults: {deletion: {max_files: yes}}", r"YAML reads yes as the boolean True: expected a number"),
        (
            "catalogs: {others: {n: {type: nessie, uri: 'http://h', warehouse: w, mark: {policies: {main: on}}}}}",
            "True",
        ),
        ("defaults: {retention: {rule: no}}", r"YAML reads no as the boolean False: quote it"),
        ("catalogs: {live: {name: 2024}}", r"YAML reads 2024 as the number 2024: quote it"),
        ("catalogs: {live: {name: }}", r"YAML reads an empty value as null: quote it"),
        ("catalogs: {live: {name: 2026-01-01}}", r"YAML reads 2026-01-01 as the date 2026-01-01: quote it"),
        ("catalogs: {live: {properties: {s3.path: true}}}", r"YAML reads true as the boolean True: quote it"),
        ("defaults: {lineage: {required: [operation, 1.5]}}", r"YAML reads 1.5 as the number 1.5: quote it"),
        ("tables: {2024: {}}", r"tables: YAML reads 2024 as the number 2024, in the place of a key: quote it"),
        ("tables: {1.5: {}}", r"number 1.5, in the place of a key"),
        ("tables: {null: {}}", r"null, in the place of a key"),
        ("on: {}", r"YAML reads on as the boolean True, in the place of a key"),
        ("tables: {'${T}': {}}", r"expanded in values, and not in keys"),
    ],
)
def test_what_yaml_took_for_something_else_is_an_error_that_says_so(tmp_path: Path, text: str, says: str) -> None:
    (problem,) = (each for each in _problems(tmp_path, f"\n{text}\n") if re.search(says, each))
    assert problem.startswith("line 2: ")


def test_a_secret_without_quotes_is_not_shown(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path, "catalogs: {live: {properties: {s3.secret-access-key: 12:34}}}\n")
    assert "12:34" not in problem and "754" not in problem and problem.endswith("quote it")


def test_patterns_that_match_equally_well_stop_only_the_tables_that_both_match(tmp_path: Path) -> None:
    config = _load(tmp_path, "tables:\n  db.a*: {retention: {window: 7y}}\n  db.*b: {}\n  db.axb: {}\n")
    for ask in (config.policy, config.entry, config.explicit_window):
        with pytest.raises(ConfigError, match=r"equally well: db\.\*b, db\.a\*.*\[table db\.ab\]"):
            ask("db.ab")
    assert [config.entry(table) for table in ("db.axb", "db.a", "db.b", "x.y")] == ["db.axb", "db.a*", "db.*b", None]
    assert not config.governs("db.ab") and config.governs("db.a") and len(config.policies("db.ab")) == 2
