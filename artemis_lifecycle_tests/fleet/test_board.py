"""The Grafana board and the alert rules load, and ask for metrics that `artemis metrics` has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from artemis_lifecycle.fleet import fleet
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.fleet.test_page import AT, TABLE

BOARD: dict[str, Any] = json.loads((REPOSITORY / "deploy" / "grafana.json").read_text())
RULES_FILE = REPOSITORY / "deploy" / "alert-rules.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
]
PANELS: dict[str, dict[str, Any]] = {panel["title"]: panel for panel in BOARD["panels"]}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the metrics of a table."""
    monkeypatch.setattr(fleet, "fleet_of", lambda *_, **__: fleet.Fleet(AT, (TABLE,)))
    for asked in ("counted", "seconds_to_deletion"):
        monkeypatch.setattr(fleet, asked, lambda _: {})
    resources: Any = SimpleNamespace(operations=SimpleNamespace(engine=None))
    return set(re.findall(r"# TYPE (\S+)", fleet.metrics(resources, [TABLE.table])))


def _asked(panel: dict[str, Any]) -> list[str]:
    return [str(target["expr"]) for target in panel["targets"]]


def test_every_query_of_the_board_and_of_the_rules_is_of_a_metric_that_there_is(known: set[str]) -> None:
    queries = [expr for panel in PANELS.values() for expr in _asked(panel)] + [str(rule["expr"]) for rule in RULES]
    asked = {name for query in queries for name in re.findall(r"artemis_\w+", query)}
    assert len(asked) >= 12 and asked <= known


def test_the_board_begins_with_what_needs_a_person_and_each_panel_follows_the_chosen_tables() -> None:
    first = ["Red checks", "Waits for approval", "Overdue tables", "Paused tables", "Tables with red checks"]
    assert [*PANELS][:6] == [*first, "Age of plans"] and len(PANELS) == len(BOARD["panels"])
    variables = {each["name"]: each for each in BOARD["templating"]["list"]}
    assert variables["table"]["query"]["query"] == "label_values(artemis_overdue, table)"
    assert variables["table"]["multi"] and variables["table"]["includeAll"]
    for panel in PANELS.values():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert all(expr.count("artemis_") == expr.count('{table=~"$table"}') == 1 for expr in _asked(panel))
    for title in first[:4]:
        assert PANELS[title]["fieldConfig"]["defaults"]["thresholds"]["steps"][-1] == {"color": "red", "value": 1}


def test_no_two_panels_lie_on_each_other() -> None:
    assert len({panel["id"] for panel in PANELS.values()}) == len(PANELS)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in PANELS.values())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


def test_the_rules_alert_of_red_checks_waits_pauses_and_old_plans_and_each_says_which_table() -> None:
    asked = {re.findall(r"artemis_\w+", rule["expr"])[0]: rule for rule in RULES}
    assert {f"artemis_{each}" for each in ("red_checks", "waiting", "paused", "plan_age_seconds")} <= asked.keys()
    for rule in RULES:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert "absent" in rule["expr"] or "$labels.table" in rule["annotations"]["summary"]
    if (promtool := shutil.which("promtool")) is not None:
        subprocess.run([promtool, "check", "rules", str(RULES_FILE)], check=True, capture_output=True)
