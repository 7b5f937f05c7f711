"""Tests a daemon's metrics in Prometheus' text format."""

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from quorate_runtime.process.metrics import (
    CONTENT_TYPE,
    SERIES_MAX,
    LabelledCounter,
    add_gauge,
    exposition,
)


def test_exposition_is_read_back_by_the_parser_of_prometheus() -> None:
    registry = CollectorRegistry()
    refused = LabelledCounter(registry, "quorate_refused_total", "Refused, by code.", ("code",))
    add_gauge(registry, "quorate_inbox", "Waiting.", lambda: 2.5)
    refused.add("expired")
    refused.add('odd"\\\n', amount=2)
    text = exposition(registry).decode()
    assert 'quorate_refused_total{code="expired"} 1.0' in text.splitlines()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert found["quorate_refused"].type == "counter" and found["quorate_inbox"].type == "gauge"
    counts = {
        sample.labels["code"]: sample.value
        for sample in found["quorate_refused"].samples
        if sample.name == "quorate_refused_total"
    }
    assert counts == {"expired": 1, 'odd"\\\n': 2}
    assert [sample.value for sample in found["quorate_inbox"].samples] == [2.5]
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


def test_registries_share_nothing() -> None:
    one, other = CollectorRegistry(), CollectorRegistry()
    LabelledCounter(one, "quorate_refused_total", "Refused.", ("code",)).add("expired")
    LabelledCounter(other, "quorate_refused_total", "Refused.", ("code",))
    assert one.get_sample_value("quorate_refused_total", {"code": "expired"}) == 1
    assert other.get_sample_value("quorate_refused_total", {"code": "expired"}) is None
    assert b"quorate" not in exposition(REGISTRY)


def test_misuse_is_a_bug() -> None:
    registry = CollectorRegistry()
    counter = LabelledCounter(registry, "c_total", "C.", ("code",))
    with pytest.raises(ValueError, match="Duplicated"):
        LabelledCounter(registry, "c_total", "again", ())
    with pytest.raises(ValueError):
        counter.add("x", amount=-1)
    for number in range(SERIES_MAX - 1):
        counter.add(str(number))
    with pytest.raises(AssertionError, match="label combinations"):
        counter.add("one more")
    counter.add("7")
    assert registry.get_sample_value("c_total", {"code": "7"}) == 2
