"""Counters and gauges of one daemon, published by prometheus-client in Prometheus' text format.

Each daemon makes its own `CollectorRegistry`; the library's global one stays empty, so that
several daemons can run in one process. Label values come from closed sets (refusal codes, effect
names) and never from strangers; `SERIES_MAX` holds that promise.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

SERIES_MAX = 1000  # label combinations of one metric
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class LabelledCounter:
    """A counter with labels. It keeps the library's object of each label combination, so that
    counting costs one dictionary look-up.
    """

    def __init__(
        self, registry: CollectorRegistry, name: str, help_text: str, labels: tuple[str, ...]
    ) -> None:
        """`name` ends in `_total`. Raises `ValueError` if the registry has this name already."""
        self._name, self._counter = name, Counter(name, help_text, labels, registry=registry)
        self._children: dict[tuple[str, ...], Counter] = {}

    def add(self, *values: str, amount: float = 1.0) -> None:
        child = self._children.get(values)
        if child is None:
            assert len(self._children) < SERIES_MAX, (
                f"{self._name}: more than {SERIES_MAX} label combinations"
            )
            child = self._children[values] = self._counter.labels(*values)
        child.inc(amount)


def add_gauge(
    registry: CollectorRegistry, name: str, help_text: str, read: Callable[[], float]
) -> None:
    Gauge(name, help_text, registry=registry).set_function(read)


def exposition(registry: CollectorRegistry) -> bytes:
    return generate_latest(registry)
