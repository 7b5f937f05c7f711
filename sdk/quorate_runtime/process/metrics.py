"""Metrics in Prometheus' text format 0.0.4
(https://prometheus.io/docs/instrumenting/exposition_formats/), without a dependency.

Label values come from closed sets (refusal codes, effect names), never from strangers;
`SERIES_MAX` holds that promise.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import TypeVar

SERIES_MAX = 1000  # label combinations of one metric
SECONDS_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
CONTENT_TYPE = "text/plain; version=0.0.4"


class Metric:
    """Name, help and label names; `render` gives its lines."""

    kind = "untyped"

    def __init__(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> None:
        self.name, self.help_text, self.labels = name, help_text, labels

    def render(self) -> list[str]:
        """Sample lines."""
        raise NotImplementedError

    def _series(self, values: tuple[str, ...], extra: str = "") -> str:
        assert len(values) == len(self.labels), f"{self.name} has the labels {self.labels}"
        pairs = [
            f'{label}="{_escape(value)}"' for label, value in zip(self.labels, values, strict=True)
        ]
        pairs += [extra] if extra else []
        return "{" + ",".join(pairs) + "}" if pairs else ""


class Counter(Metric):
    """Only grows."""

    kind = "counter"

    def __init__(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> None:
        super().__init__(name, help_text, labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *values: str, amount: float = 1.0) -> None:
        """Adds to the series with these label values."""
        assert amount >= 0, "a counter only grows"
        assert values in self._values or len(self._values) < SERIES_MAX, (
            f"{self.name}: more than {SERIES_MAX} label combinations"
        )
        self._values[values] = self._values.get(values, 0.0) + amount

    def value(self, *values: str) -> float:
        """What was counted."""
        return self._values.get(values, 0.0)

    def render(self) -> list[str]:
        """Sample lines."""
        return [
            f"{self.name}{self._series(values)} {_number(count)}"
            for values, count in self._values.items()
        ]


class Gauge(Metric):
    """Goes up and down; `read` is asked at each scrape."""

    kind = "gauge"

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        super().__init__(name, help_text)
        self._read = read

    def render(self) -> list[str]:
        """The sample line."""
        return [f"{self.name} {_number(self._read())}"]


class Histogram(Metric):
    """Counts of observations at or below each bound, their sum and number."""

    kind = "histogram"

    def __init__(
        self, name: str, help_text: str, buckets: tuple[float, ...] = SECONDS_BUCKETS
    ) -> None:
        super().__init__(name, help_text)
        self._bounds = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Takes note of one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def render(self) -> list[str]:
        """Cumulative buckets, sum and count."""
        lines, total = [], 0
        for bound, count in zip(
            (*(_number(b) for b in self._bounds), "+Inf"), self._counts, strict=True
        ):
            total += count
            lines.append(f'{self.name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{self.name}_sum {_number(self._sum)}", f"{self.name}_count {total}"]


M = TypeVar("M", bound=Metric)


class Registry:
    """All metrics of one daemon; there is no global one."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def counter(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Counter:
        """A new counter; its name ends in `_total`."""
        return self._add(Counter(name, help_text, labels))

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> Gauge:
        """A new gauge over a function."""
        return self._add(Gauge(name, help_text, read))

    def histogram(
        self, name: str, help_text: str, buckets: tuple[float, ...] = SECONDS_BUCKETS
    ) -> Histogram:
        """A new histogram."""
        return self._add(Histogram(name, help_text, buckets))

    def render(self) -> str:
        """Everything, as a scrape wants it."""
        lines: list[str] = []
        for metric in self._metrics.values():
            lines += [
                f"# HELP {metric.name} {metric.help_text}",
                f"# TYPE {metric.name} {metric.kind}",
                *metric.render(),
            ]
        return "\n".join(lines) + "\n"

    def _add(self, metric: M) -> M:
        assert metric.name not in self._metrics, f"the metric {metric.name} exists"
        self._metrics[metric.name] = metric
        return metric


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
