"""The text that Prometheus scrapes."""

import pytest

from quorate_runtime.process.metrics import SERIES_MAX, Registry


def test_text_format() -> None:
    registry = Registry()
    refused = registry.counter("quorate_refused_total", "Refused, by code.", ("code",))
    plain = registry.counter("quorate_events_total", "Events.")
    registry.gauge("quorate_inbox", "Waiting.", lambda: 2.5)
    seconds = registry.histogram("quorate_step_seconds", "Step.", (0.1, 1.0))
    refused.add("expired")
    refused.add('odd"\\\n', amount=2)
    plain.add()
    for value in (0.1, 0.5, 7.0):
        seconds.observe(value)
    assert registry.render().splitlines() == [
        "# HELP quorate_refused_total Refused, by code.",
        "# TYPE quorate_refused_total counter",
        'quorate_refused_total{code="expired"} 1',
        'quorate_refused_total{code="odd\\"\\\\\\n"} 2',
        "# HELP quorate_events_total Events.",
        "# TYPE quorate_events_total counter",
        "quorate_events_total 1",
        "# HELP quorate_inbox Waiting.",
        "# TYPE quorate_inbox gauge",
        "quorate_inbox 2.5",
        "# HELP quorate_step_seconds Step.",
        "# TYPE quorate_step_seconds histogram",
        'quorate_step_seconds_bucket{le="0.1"} 1',
        'quorate_step_seconds_bucket{le="1"} 2',
        'quorate_step_seconds_bucket{le="+Inf"} 3',
        "quorate_step_seconds_sum 7.6",
        "quorate_step_seconds_count 3",
    ]


def test_misuse_is_a_bug() -> None:
    registry = Registry()
    counter = registry.counter("c_total", "C.", ("code",))
    with pytest.raises(AssertionError):
        registry.counter("c_total", "again")
    with pytest.raises(AssertionError):
        counter.add("x", amount=-1)
    for number in range(SERIES_MAX):
        counter.add(str(number))
    with pytest.raises(AssertionError, match="label combinations"):
        counter.add("one more")
    counter.add("7")
    assert counter.value("7") == 2
