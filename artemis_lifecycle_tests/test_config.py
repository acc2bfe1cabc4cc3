"""lifecycle.yaml: what may be said of retention, and what is refused with its line."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from artemis_lifecycle.config.durations import parse_duration
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import Thin
from artemis_lifecycle.embedded.addresses import fill
from artemis_lifecycle.errors import ConfigError
from artemis_lifecycle.retention.rules import RetentionSettings, ThinningTier

THINNED = """
defaults:
  retention:
    thin: [{keep: hourly, for: 1d}, {keep: daily, for: 30d}, {keep: monthly, for: forever}]
tables:
  a.b: {retention: {window: 7d}}
  a.c: {retention: {thin: []}}
"""


def _load(folder: Path, text: str) -> LifecycleConfig:
    file = folder / "lifecycle.yaml"
    file.write_text(text)
    return load_config(file, {})


def test_thinning_is_typed_inherited_and_means_what_the_rules_know(tmp_path: Path) -> None:
    config = _load(tmp_path, THINNED)
    thin = config.policy("a.b").retention.thin
    assert [(tier.keep, tier.lasting) for tier in thin] == [
        ("hourly", timedelta(days=1)),
        ("daily", timedelta(days=30)),
        ("monthly", "forever"),
    ]
    day = 24 * 3_600_000
    tiers = (ThinningTier("hour", day), ThinningTier("day", 30 * day), ThinningTier("month"))
    assert RetentionSettings.of(config.policy("a.b").retention).thinning == tiers
    assert config.policy("a.c").retention.thin == ()
    assert config.policy("elsewhere.t").retention.thin == thin


def test_a_configuration_reads_back_from_its_own_json(tmp_path: Path) -> None:
    config = _load(tmp_path, THINNED)
    again = _load(tmp_path, config.model_dump_json(by_alias=True))
    assert again.defaults == config.defaults


def test_paimons_keys_are_taken_under_paimons_rule(tmp_path: Path) -> None:
    text = (
        "defaults:\n  retention: {rule: paimon, min_snapshots: 2, max_snapshots: 5, "
        "expire_limit: 10, next_timestamp: true}\n"
    )
    retention = _load(tmp_path, text).policy("a.b").retention
    assert (retention.expire_limit, retention.next_timestamp) == (10, True)


def test_a_name_may_have_any_character_but_the_wildcard() -> None:
    """An entry for one table governs no other one."""
    config = LifecycleConfig.model_validate({"tables": {"db.u[1]": {}, "db.v?": {}, "db.(w|x)": {}, "ns.*_[2]": {}}})
    governed = ["db.u[1]", "db.v?", "db.(w|x)", "ns.a_[2]", "ns.b.c_[2]"]
    others = ["db.u1", "db.vv", "db.w", "ns.a_2", "DB.u[1]"]
    assert [table for table in (*governed, *others) if config.governs(table)] == governed


@pytest.mark.parametrize(
    ("retention", "says"),
    [
        ("{thin: [{keep: hourly}]}", "line 4.*for"),
        ("{thin: [{keep: fortnightly, for: 1d}]}", "line 4"),
        ("{thin: [{keep: daily, for: ever}]}", "line 4"),
        ("{thin: [{keep: daily, for: 1d}, {keep: daily, for: 2d}]}", "line 4.*daily is there twice"),
        ("{thin: [{keep: daily, for: 1d, until: 2d}]}", "unknown key 'until'"),
        ("{expire_limit: 10}", "expire_limit has a meaning only under rule paimon"),
        ("{next_timestamp: true}", "next_timestamp has a meaning only under rule paimon"),
        ("{rule: paimon, expire_limit: 0}", "line 4.*expire_limit"),
        ("{rule: paimon, min_snapshots: 3, max_snapshots: 2}", "must not be less than min_snapshots"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, retention: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        _load(tmp_path, f"tables:\n  a.b:\n    # this one\n    retention: {retention}\n")


def test_a_tier_may_be_given_by_its_python_name() -> None:
    assert Thin(keep="daily", lasting="forever") == Thin.model_validate({"keep": "daily", "for": "forever"})


@pytest.mark.parametrize("text", ["30", "30 days", "-1d", "1.5h", "", "99999999999999999d", None, 30])
def test_a_duration_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"duration|calendar"):
        parse_duration(text)


def test_a_catalog_keeps_the_defaults_of_its_tier_that_the_file_does_not_speak_of() -> None:
    given = {"catalogs": {"cold": {"warehouse": "s3://b/cold"}, "live": {"name": "mine"}}}
    catalogs = LifecycleConfig.model_validate(given).catalogs
    assert (catalogs.cold.name, catalogs.cold.storage_class) == ("cold", "GLACIER_IR")
    assert catalogs.cold.expected_latency == timedelta(seconds=5)
    assert (catalogs.live.name, catalogs.live.storage_class) == ("mine", None)
    assert catalogs.live.expected_latency == timedelta(seconds=1)
    none = {"catalogs": {"cold": {"storage_class": None}}}
    assert LifecycleConfig.model_validate(none).catalogs.cold.storage_class is None


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg2"])
def test_an_address_of_postgres_without_a_driver_gets_the_one_that_is_installed(scheme: str) -> None:
    given = {"operations": {"uri": f"{scheme}://h/db"}}
    assert LifecycleConfig.model_validate(given).operations.uri == "postgresql+psycopg2://h/db"


def test_other_catalogs_keep_their_places_and_secrets(tmp_path: Path) -> None:
    text = (
        "home: h\ncatalogs:\n  live: {uri: postgresql://h/db}\n  cold: {uri: postgresql://h/db}\n"
        "  others:\n    lake: {type: paimon, warehouse: lake}\n"
        "    versions: {type: nessie, uri: 'http://me:topsecret@h/api/v2', warehouse: s3://b/n, "
        "properties: {token: topsecret}}\n"
    )
    config = fill(_load(tmp_path, text + "operations: {uri: postgresql://h/db}\n"))
    others = config.catalogs.others
    assert (others["lake"].warehouse, others["versions"].warehouse) == (f"file://{tmp_path}/lake", "s3://b/n")
    assert "topsecret" not in repr(config) and config.roots()["catalogs.others.lake.warehouse"] is not None


def test_every_relative_place_is_below_the_folder_of_the_file(tmp_path: Path) -> None:
    catalogs = (
        "catalogs: {live: {warehouse: live}, cold: {warehouse: cold}, others: {lake: {type: paimon, warehouse: p}}}"
    )
    config = _load(tmp_path, f"{catalogs}\noperations: {{root: state}}\nquarantine: {{root: aside}}\n")
    places = {key: place for key, place in config.roots().items() if place is not None}
    assert places.keys() >= {"catalogs.cold.warehouse", "operations.root", "quarantine.root"}
    assert [place for place in places.values() if not place.startswith(f"file://{tmp_path}/")] == []


SECRETS = {
    "catalogs": {
        "live": {
            "uri": "postgresql+psycopg2://me:topsecret@host:5432/db?password=topsecret",
            "properties": {"s3.secret-access-key": "topsecret", "s3.endpoint": "http://store"},
        }
    },
    "spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "topsecret"}},
}


def test_a_configuration_shows_no_secret_of_its_own() -> None:
    config = LifecycleConfig.model_validate(SECRETS)
    for shown in (repr(config), str(config), f"{config.catalogs.live}"):
        assert ("topsecret" not in shown and "http://store" in shown) or shown == repr(config.spark)
    assert "host:5432/db" in repr(config.catalogs.live)


@pytest.mark.parametrize("password", ["top@secret", "top/sec@ret", "top:secret"])
def test_an_unescaped_address_is_refused_and_not_shown(password: str, tmp_path: Path) -> None:
    path = tmp_path / "lifecycle.yaml"
    path.write_text(f"catalogs:\n  live:\n    uri: postgresql+psycopg2://me:{password}@host/db\n")
    with pytest.raises(ConfigError, match=r"line 3.*write it as %") as refused:
        load_config(path, {})
    assert "sec" not in str(refused.value) and "ret@" not in str(refused.value)


def test_a_value_in_the_place_of_a_key_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "lifecycle.yaml"
    path.write_text("catalogs:\n  live:\n    postgresql://me:topsecret@host/db:\n")
    with pytest.raises(ConfigError, match="unknown key") as refused:
        load_config(path, {})
    assert "topsecret" not in str(refused.value)


WRONG = """\
catalogs: {live: {name: cold}}
defaults:
  retention: {window: 30}
  orphans: {min_age_floor: 5x, min_age: 1h}
operations: {root: /a}
quarantine: {root: /a/b}
tables:
  a.b: {orphans: {min_age: 1h}}
  a.c: {retention: {expire_limit: 3}}
nonsense: 1
"""


def test_every_problem_of_a_file_is_reported_in_one_pass_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 6 problems") as refused:
        _load(tmp_path, WRONG)
    reported = [problem.split(" ", 3)[:3] for problem in refused.value.problems]
    assert reported == [
        ["line", "1:", "catalogs.live"],
        ["line", "3:", "defaults.retention.window:"],
        ["line", "4:", "defaults.orphans.min_age_floor:"],
        ["line", "5:", "operations.root"],
        ["line", "9:", "tables.a.c:"],
        ["line", "10:", "nonsense:"],
    ]
    assert all(problem in str(refused.value) for problem in refused.value.problems)


def test_a_table_may_lower_min_age_to_the_floor_of_the_defaults_and_no_further(tmp_path: Path) -> None:
    text = "defaults: {{orphans: {{min_age_floor: 1h}}}}\ntables:\n  a.b: {{orphans: {{min_age: {}}}}}\n"
    assert _load(tmp_path, text.format("1h")).policy("a.b").orphans.min_age == timedelta(hours=1)
    with pytest.raises(ConfigError, match=r"line 3: tables\.a\.b: orphans\.min_age 30m is under min_age_floor 1h"):
        _load(tmp_path, text.format("30m"))


def test_each_delay_of_zero_is_a_warning_where_it_is_set(tmp_path: Path) -> None:
    text = """\
defaults: {deletion: {grace: 0s}, orphans: {min_age_floor: 0ms}}
tables:
  a.b: {retention: {window: 0d}, orphans: {min_age: 0h}}
  a.c: {retention: {window: 1d}}
"""
    config = _load(tmp_path, text)
    assert [warning.split(" is 0: ")[0] for warning in config.warnings()] == [
        "defaults.deletion.grace",
        "defaults.orphans.min_age_floor",
        "tables.a.b.retention.window",
        "tables.a.b.orphans.min_age",
    ]
    assert len(config.policy("a.b").zero_delays()) == 4
    assert LifecycleConfig().warnings() == ()


@pytest.mark.parametrize(
    ("catalogs", "says"),
    [
        (
            "{cold: {type: rest, uri: 'http://h'}}",
            r"line 2: catalogs\.cold\.type is rest",
        ),
        ("{live: {type: hive}}", r"line 2: catalogs\.live: a catalog of type hive needs its uri"),
        ("{others: {n: {type: nessie, warehouse: n}}}", r"line 2: catalogs\.others\.n: .* nessie needs its uri"),
        ("{others: {p: {type: paimon, warehouse: p, uri: 'http://h'}}}", r"of type paimon has no uri"),
        ("{others: {p: {type: paimon, warehouse: p, mark: {unseen: delete}}}}", r"of type paimon has no mark"),
        ("{others: {n: {type: nessie, uri: 'http://h', warehouse: n, expire: {limit: coded}}}}", r"has no expire"),
        (
            "{others: {n: {type: nessie, uri: 'http://h', warehouse: n, properties: {s3: x}}}}",
            r"is token, not s3",
        ),
        ("{others: {p: {type: paimon}}}", r"line 2: catalogs\.others\.p: .* paimon needs its warehouse"),
        ("{others: {live: {type: paimon, warehouse: p}}}", r"others\.live: not a name .* or already the live"),
        ("{others: {'a:b': {type: paimon, warehouse: p}}}", r"others\.a:b: not a name of letters"),
        ("{live: {warehouse: w}, others: {p: {type: paimon, warehouse: w/p}}}", r"are equal or nested"),
    ],
)
def test_a_catalog_that_cannot_work_is_refused_at_once(tmp_path: Path, catalogs: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        _load(tmp_path, f"home: .artemis\ncatalogs: {catalogs}\n")


@pytest.mark.parametrize("scheme", ["gs://b", "abfss://c@a.dfs.core.windows.net", "wasb://c@a.blob.core.windows.net"])
def test_a_store_without_a_deep_archive_says_so_before_anything_is_planned(tmp_path: Path, scheme: str) -> None:
    text = f"catalogs: {{cold: {{warehouse: '{scheme}/cold'}}}}\n"
    with pytest.raises(ConfigError, match=r"defaults\.cold_tier\.then is deep-archive.*set it to keep"):
        _load(tmp_path, text)
    keep = f"{text}defaults: {{cold_tier: {{then: keep}}}}\n"
    assert _load(tmp_path, keep).defaults.cold_tier.then == "keep"
    with pytest.raises(ConfigError, match=r"tables\.a\.b\.cold_tier\.then"):
        _load(tmp_path, f"{keep}tables: {{a.b: {{cold_tier: {{then: deep-archive}}}}}}\n")
    # Disabled, nothing is ever archived.
    assert _load(tmp_path, f"{text}defaults: {{cold_tier: {{enabled: false}}}}\n").defaults.cold_tier.then


def test_two_spellings_of_one_azure_container_are_one_root(tmp_path: Path) -> None:
    live, cold = "abfss://c@a.dfs.core.windows.net/t", "wasbs://c@a.blob.core.windows.net/t/cold"
    text = f"catalogs: {{live: {{warehouse: '{live}'}}, cold: {{warehouse: '{cold}'}}}}\n"
    with pytest.raises(ConfigError, match="equal or nested"):
        _load(tmp_path, f"{text}defaults: {{cold_tier: {{then: keep}}}}\n")


def test_no_secret_of_a_store_is_shown_and_its_places_are() -> None:
    secrets = (
        "adls.account-key",
        "adls.sas-token",
        "adls.client-secret",
        "adls.connection-string.h",
        "gcs.oauth2.token",
    )
    secrets += ("gcs.encryption-key", "adls.auth.shared-key.account.key")
    root = "abfss://container@account.dfs.core.windows.net/live"
    properties = dict.fromkeys(secrets, "never-show-this") | {"adls.account-name": "account"}
    live = {"warehouse": root, "properties": properties, "uri": "postgresql://u:never-show-this@h/d"}
    shown = repr(LifecycleConfig.model_validate({"catalogs": {"live": live}}))
    assert "never-show-this" not in shown and shown.count(root) == 1 and "'adls.account-name': 'account'" in shown
