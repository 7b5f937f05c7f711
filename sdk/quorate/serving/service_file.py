"""Reads the file of a service: a job file with `type: service` and the key `service`."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quorate.base.errors import UsageError
from quorate.job.job import Job
from quorate.job.jobfile import explain_unknown, is_service, load_tree, parse_tree
from quorate.job.quantities import parse_amount, parse_duration
from quorate.serving.scaling import Scale

if TYPE_CHECKING:
    from quorate.serving.meters import TokenCounter

PORT_DEFAULT = 8000
REPLICAS_MAX = 64
AHEAD = "2m"  # of each replica, and `serve` keeps it going: without it the replica ends so soon
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)
_CANARY_KEYS = ("image", "command", "commands", "env", "inputs", "resources")


class ReplicasModel(BaseModel):
    """The keys of `service.replicas`."""

    model_config = _STRICT
    min: int = Field(default=1, ge=0, le=REPLICAS_MAX)
    max: int = Field(default=1, ge=1, le=REPLICAS_MAX)
    in_flight: int = Field(default=8, ge=1, le=10_000)
    warm: int = Field(default=0, ge=0, le=REPLICAS_MAX)
    idle: str | int = "5m"


class PricesModel(BaseModel):
    """The keys of `service.prices`, in USD for a million tokens."""

    model_config = _STRICT
    input: str | int = 0
    output: str | int = 0


class CanaryModel(BaseModel):
    """The keys of `service.canary`: its share, and what differs from the service."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    share: str | int


class ServiceModel(BaseModel):
    """The keys of `service:`."""

    model_config = _STRICT
    port: int = Field(default=PORT_DEFAULT, ge=1, le=65_535)
    probe: str = Field(default="/", pattern="^/")
    load_within: str | int = "15m"
    wait: str | int = "5m"
    replicas: ReplicasModel = ReplicasModel()
    prices: PricesModel = PricesModel()
    canary: CanaryModel | None = None


_MODELS: dict[str, type[BaseModel]] = {
    "service": ServiceModel,
    "replicas": ReplicasModel,
    "prices": PricesModel,
}


@dataclass(frozen=True, slots=True)
class Prices:
    """Millionths of a USD for a million tokens; 0 of both: a request's part of its machine."""

    tokens_in: int = 0
    tokens_out: int = 0

    def cost(self, counter: "TokenCounter", part: float) -> int:
        if not (self.tokens_in or self.tokens_out):
            return round(part)
        tokens = counter.tokens_in * self.tokens_in
        tokens += max(counter.tokens_out, counter.pieces) * self.tokens_out
        return -(-tokens // 1_000_000)


@dataclass(frozen=True, slots=True)
class Revision:
    """One version of what replicas run. `digest` names it."""

    digest: str
    job: Job


@dataclass(frozen=True, slots=True)
class Service:
    """A service as its file describes it. Times in seconds."""

    name: str
    stable: Revision
    canary: Revision | None
    share: float
    port: int
    probe: str
    load_seconds: float
    wait_seconds: float
    scale: Scale
    prices: Prices

    def jobs(self) -> list[Job]:
        """What its machines run: the stable revision first."""
        return [item.job for item in (self.stable, self.canary) if item is not None]


def load_service(path: Path) -> Service:
    """Raises UsageError that names the wrong field."""
    return service_of(load_tree(path), path.parent)


def service_of(tree: Any, folder: Path) -> Service:
    """The service that a file's content describes. Relative paths start at `folder`. Raises
    UsageError.
    """
    if not is_service(tree):
        raise UsageError("type: the file of a service says `type: service`")
    given = tree.pop("service", {})
    tree.setdefault("for", AHEAD)
    try:
        model = ServiceModel.model_validate({} if given is None else given)
    except ValidationError as error:
        raise UsageError(_first_problem(error)) from error
    replicas = model.replicas
    if replicas.min > replicas.max:
        raise UsageError(
            f"service.replicas: min {replicas.min} is above max {replicas.max}; raise max"
        )
    scale = Scale(
        replicas.min,
        replicas.max,
        replicas.in_flight,
        float(parse_duration(replicas.idle, "service.replicas.idle")),
        replicas.warm,
    )
    stable = _revision(tree, folder)
    canary, share = _canary(tree, model.canary, folder)
    return Service(
        name=stable.job.name,
        stable=stable,
        canary=canary,
        share=share,
        port=model.port,
        probe=model.probe,
        load_seconds=float(parse_duration(model.load_within, "service.load_within")),
        wait_seconds=float(parse_duration(model.wait, "service.wait")),
        scale=scale,
        prices=Prices(_price(model.prices.input, "input"), _price(model.prices.output, "output")),
    )


def _price(text: str | int, name: str) -> int:
    return parse_amount(text, f"service.prices.{name}") if text else 0


def _revision(tree: dict[str, Any], folder: Path) -> Revision:
    digest = hashlib.sha256(json.dumps(_plain(tree), sort_keys=True).encode()).hexdigest()[:12]
    return Revision(digest, parse_tree(tree, folder))


def _plain(tree: Any) -> Any:
    """The file's values as text, so that any of them has one digest."""
    if isinstance(tree, dict):
        return {str(key): _plain(value) for key, value in tree.items()}
    return [_plain(item) for item in tree] if isinstance(tree, list) else str(tree)


def _canary(
    tree: dict[str, Any], model: CanaryModel | None, folder: Path
) -> tuple[Revision | None, float]:
    if model is None:
        return None, 0.0
    changes = dict(model.model_extra or {})
    unknown = sorted(set(changes) - set(_CANARY_KEYS))
    if unknown or not changes:
        named = f"{unknown[0]}: " if unknown else ""
        raise UsageError(
            f"service.canary: {named}it may change {', '.join(_CANARY_KEYS)}, and must change one"
        )
    text = str(model.share).strip()
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= 99):
        raise UsageError(f'service.canary.share: {text[:32]!r}; write per cent such as "10%"')
    if "command" in changes or "commands" in changes:
        tree = {key: value for key, value in tree.items() if key not in ("command", "commands")}
    return _revision({**tree, **changes}, folder), int(number) / 100


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    path = ["service", *(str(part) for part in problem["loc"])]
    if problem["type"] == "extra_forbidden":
        return explain_unknown(path[-1], ".".join(path[:-1]), _MODELS[path[-2]].model_fields)
    where = ".".join(path)
    return f"{where}: {problem['msg'][:1].lower()}{problem['msg'][1:]}"
