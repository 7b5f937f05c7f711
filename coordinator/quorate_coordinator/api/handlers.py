"""Mounts the handlers of the API: each names its route."""

from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import web

from quorate_coordinator.base.operator_view import OperatorView
from quorate_runtime.http.coordinator_routes import ROUTES, TEXT, Route

H = TypeVar("H", bound=Callable[..., Any])
OPERATOR = Route(
    "GET /v1/operator", "Everything for the operator, as /metrics: see there.", OperatorView
)
METRICS = Route(
    "GET /metrics",
    "Metrics in Prometheus' text format, for this machine and the networks that the operator "
    "named.",
    TEXT,
)
OPERATIONS = (*ROUTES, OPERATOR, METRICS)


def handles(route: Route[Any]) -> Callable[[H], H]:
    def mark(handler: H) -> H:
        handler.__dict__["route"] = route
        return handler

    return mark


def add_handlers(app: web.Application, *owners: object) -> None:
    for owner in owners:
        for name, item in vars(type(owner)).items():
            route = getattr(item, "route", None)
            if isinstance(route, Route):
                add = app.router.add_get if route.method == "GET" else app.router.add_post
                add(route.path, getattr(owner, name))
