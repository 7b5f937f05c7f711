"""What a service did, by model: requests, tokens, time to the first one, and what they cost.

Tokens are counted in answers of OpenAI's form, whole or streamed. Other answers have none.
"""

import json
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from quorate.serving.key_book import Usage
from quorate.serving.replicas import Health, Replicas

MODELS_MAX = 32  # label values; further ones count as "other"
LATEST = 1000  # requests by model of which medians are shown
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BODY_BYTES_MAX = 8 << 20  # of an answer that is read for its usage
LINE_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class _Model:
    requests: int = 0
    failed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    first: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    speed: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))


class Meters:
    """The figures of one gateway since its start. Costs of machines in millionths of a USD."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "quorate_service_requests_total", "Requests by model and end.", ("model", "end"),
            registry=registry,
        )  # fmt: skip
        self._tokens = Counter(
            "quorate_service_tokens_total", "Tokens by model and direction.",
            ("model", "direction"), registry=registry,
        )  # fmt: skip
        self._cost = Counter(
            "quorate_service_cost_usd_total", "Cost of the machines by model, in USD.", ("model",),
            registry=registry,
        )  # fmt: skip
        self._first = Histogram(
            "quorate_service_first_byte_seconds", "Time to the first byte by model.", ("model",),
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._denials = Counter(
            "quorate_service_denied_total", "Requests that no key allowed, by reason.", ("code",),
            registry=registry,
        )  # fmt: skip
        self._states = Gauge(
            "quorate_service_replicas", "Replicas by state.", ("state",), registry=registry
        )
        self._in_flight = Gauge(
            "quorate_service_in_flight", "Requests in flight.", registry=registry
        )

    def answered(self, model: str, used: Usage, first: float, seconds: float, cost: float) -> None:
        name, found = self._of(model)
        found.requests += 1
        found.tokens_in += used.tokens_in
        found.tokens_out += used.tokens_out
        found.cost += cost
        if first:
            found.first.append(first)
            self._first.labels(name).observe(first)
        if used.tokens_out and seconds > first:
            found.speed.append(used.tokens_out / (seconds - first))
        self._requests.labels(name, "answered").inc()
        self._tokens.labels(name, "in").inc(used.tokens_in)
        self._tokens.labels(name, "out").inc(used.tokens_out)
        self._cost.labels(name).inc(cost / 1e6)

    def failed(self, model: str) -> None:
        name, found = self._of(model)
        found.failed += 1
        self._requests.labels(name, "failed").inc()

    def denied(self, code: str) -> None:
        self._denials.labels(code).inc()

    def summary(self) -> dict[str, dict[str, float | int | None]]:
        return {name: _summary(found) for name, found in sorted(self._models.items())}

    def exposition(self, replicas: Replicas) -> bytes:
        for health in Health:
            count = sum(it.health is health for it in replicas.found)
            self._states.labels(health.value).set(count)
        self._in_flight.set(sum(it.in_flight for it in replicas.found))
        return generate_latest(self._registry)

    def _of(self, model: str) -> tuple[str, _Model]:
        name = model or "-"
        if name not in self._models and len(self._models) >= MODELS_MAX:
            name = "other"
        return name, self._models.setdefault(name, _Model())


def _summary(found: _Model) -> dict[str, float | int | None]:
    tokens = found.tokens_in + found.tokens_out
    return {
        "requests": found.requests,
        "failed": found.failed,
        "tokensIn": found.tokens_in,
        "tokensOut": found.tokens_out,
        "firstByteMs": round(median(found.first) * 1000, 2) if found.first else None,
        "tokensPerSecond": round(median(found.speed), 2) if found.speed else None,
        "usd": round(found.cost / 1e6, 6),
        "usdPerMillionTokens": round(found.cost / tokens, 4) if tokens else None,
    }


@dataclass(slots=True)
class TokenCounter:
    """Reads an answer as it passes. A stream that names no usage counts a token for each piece of
    text.
    """

    is_stream: bool
    tokens_in: int = 0
    tokens_out: int = 0
    pieces: int = 0
    has_usage: bool = False
    is_done: bool = False  # the stream said so
    _rest: bytes = b""
    _is_whole: bool = True

    def feed(self, data: bytes) -> None:
        if not self.is_stream:
            self._is_whole = self._is_whole and len(self._rest) + len(data) <= BODY_BYTES_MAX
            self._rest = self._rest + data if self._is_whole else b""
            return
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LINE_BYTES_MAX]
        for line in lines:
            if line.startswith(b"data:") and b"[DONE]" not in line:
                self._take(_tree(line[5:]))
            self.is_done = self.is_done or line.rstrip() in (b"data: [DONE]", b"data:[DONE]")

    @property
    def is_in_line(self) -> bool:
        return bool(self._rest)

    def finish(self) -> None:
        if not self.is_stream and self._rest:
            self._take(_tree(self._rest))
        if not self.has_usage:
            self.tokens_out = self.pieces

    def _take(self, tree: Any) -> None:
        if not isinstance(tree, dict):
            return
        usage = tree.get("usage")
        if isinstance(usage, dict):
            self.has_usage = True
            self.tokens_in = _count(usage, "prompt_tokens", "input_tokens")
            self.tokens_out = _count(usage, "completion_tokens", "output_tokens")
        elif self.is_stream and tree.get("choices"):
            self.pieces += 1


def _tree(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None  # not re-raised: it passes as it is, and has no tokens


def _count(usage: dict[str, Any], *names: str) -> int:
    values = [usage[name] for name in names if isinstance(usage.get(name), int)]
    return max(0, values[0]) if values else 0
