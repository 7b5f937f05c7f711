"""Tests the alerts and the dashboard of docker/ as far as that needs no running market."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

DOCKER = Path(__file__).resolve().parents[3] / "docker"


@pytest.mark.promtool
def test_promtool_accepts_configuration_and_alerts() -> None:
    for words in (
        ("check", "config", DOCKER / "prometheus" / "prometheus.yml"),
        ("test", "rules", DOCKER / "prometheus" / "alerts_test.yml"),
        ("test", "rules", DOCKER / "prometheus" / "node_alerts_test.yml"),
    ):
        done = subprocess.run(
            ["promtool", *map(str, words)], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["alerts", "node_alerts"])
def test_every_alert_has_a_remedy_a_severity_and_an_example(name: str) -> None:
    folder = DOCKER / "prometheus"
    rules = yaml.safe_load((folder / f"{name}.yml").read_text())["groups"][0]["rules"]
    examples = (folder / f"{name}_test.yml").read_text()
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "remedy"}, rule
        assert rule["labels"]["severity"] in ("page", "ticket", "info"), rule
        for series in re.findall(r"quorate_[a-z_]+", rule["expr"]):
            assert series in examples, series


@pytest.mark.parametrize("name", ["coordinator", "node", "service"])
def test_every_panel_says_what_it_shows(name: str) -> None:
    board = json.loads((DOCKER / "grafana" / f"{name}.json").read_text())
    for panel in board["panels"]:
        assert panel["description"] and panel["targets"], panel["title"]
