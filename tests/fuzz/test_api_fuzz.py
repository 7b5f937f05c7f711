"""Requests to every route of the real service, made from its OpenAPI document.

Valid and invalid requests are sent as nobody, as a stranger, as a client and as a provider. Answers
must be documented and typed. `QUORATE_FUZZ` multiplies the examples.
"""

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.transport import Response
from schemathesis.generation import GenerationMode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from fuzz.api_parties import CLIENT, WHO, Parties, parties
from quorate_coordinator.api.handlers import OPERATIONS
from quorate_protocol.refusals import Code
from quorate_runtime.http.coordinator_routes import EVENT_STREAM, TEXT, Route
from support.fuzz_properties import COUNTS

EXAMPLES = 3 * int(os.environ.get("QUORATE_FUZZ", "1"))
CODES = {*Code, "unavailable"}
STREAMS = {
    item.path
    for item in OPERATIONS
    if item.answer in (EVENT_STREAM, TEXT) and item.path != "/metrics"
}
DOCUMENTED = [status_code_conformance, content_type_conformance, response_schema_conformance]
SECONDS_MAX = 5.0  # seconds of processor that a request may cost, including the asking side
WAIT_SECONDS = 60.0  # by the clock, which says little on a machine that other programs use
ASKED: Counter[tuple[str, str]] = Counter()
GOOD: set[tuple[str, str]] = set()
"""(who, route) that were answered successfully."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    """The service and its parties, in a thread with a loop of its own."""
    begun, ended = threading.Event(), asyncio.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        found["loop"] = asyncio.get_running_loop()
        async with parties(tmp_path_factory.mktemp("api")) as everybody:
            found["everybody"] = everybody
            begun.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert begun.wait(60), "the service did not come up"
        yield found["everybody"]
    finally:
        found["loop"].call_soon_threadsafe(ended.set)
        thread.join(30)


@pytest.fixture(scope="module")
def schema(served: Parties) -> BaseSchema:
    """The service's own document."""
    return schemathesis.openapi.from_dict(
        requests.get(f"{served.url}/v1/openapi.json", timeout=WAIT_SECONDS).json()
    )


def takes_anything(item: Route[Any]) -> bool:
    """Whether every request to the route is valid."""
    return item.body is not None or bool(item.queries) or "{" in item.path


def check(case: Any, response: requests.Response, seconds: float) -> None:
    """The answer is documented, typed, in time, and shows no internals."""
    assert seconds < SECONDS_MAX
    if response.status_code == 412:  # the gateway's specification gives `only-if-cached` no body
        return
    if response.status_code >= 400:
        tree = json.loads(response.text)
        assert set(tree) == {"code", "sentence", "detail"} and tree["code"] in CODES, response.text[
            :300
        ]
        assert response.status_code not in (500, 504) and "Traceback" not in response.text, (
            response.text[:300]
        )
    case.validate_response(Response.from_requests(response, verify=False), checks=DOCUMENTED)


CASES = [
    (item, mode)
    for item in OPERATIONS
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or takes_anything(item)
]


@pytest.mark.parametrize(
    ("item", "mode"), CASES, ids=[f"{item.method}{item.path}-{mode.value}" for item, mode in CASES]
)
def test_every_answer_is_typed(
    served: Parties, schema: BaseSchema, item: Route[Any], mode: GenerationMode
) -> None:
    session, route = requests.Session(), f"{item.method} {item.path}"
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=quiet,
        phases=[Phase.generate],
        database=None,
    )
    @given(
        case=schema[item.path][item.method].as_strategy(generation_mode=mode),
        known=st.integers(0, 3),
    )
    def holds(case: Any, known: int) -> None:
        for name, values in served.known.items():
            if f"{{{name}}}" in item.path and known < len(values):
                case.path_parameters[name] = values[known]
        for who in WHO:
            begun = time.process_time()
            request = case.as_transport_kwargs(
                base_url=served.url, headers=dict(served.headers[who])
            )
            with session.request(**request, stream=True, timeout=WAIT_SECONDS) as response:
                tell(who, route, response)
                if (
                    item.path in STREAMS and response.status_code < 400
                ):  # an event stream may continue for ever, so the test reads only its head
                    assert response.headers["Content-Type"].startswith(str(item.answer))
                else:
                    check(case, response, time.process_time() - begun)

    with session:
        holds()


def tell(who: str, route: str, response: requests.Response) -> None:
    ASKED[who, route] += 1
    COUNTS[f"requests as {who}"] += 1
    COUNTS[f"routes as {who}"] = sum(name == who for name, _ in ASKED)
    if response.status_code < 400:
        GOOD.add((who, route))


def test_every_party_gets_successful_answers(served: Parties) -> None:
    """This shows that the tokens are valid, so the answers above were not all 401."""
    (run, running), (account, provider) = served.known["job"], served.known["address"]
    for path, those in (
        ("/v1/runs", {*WHO} - {"nobody"}),
        (f"/v1/runs/{run}/logs", {CLIENT}),
        (f"/v1/accounts/{account}", {CLIENT}),
        (f"/v1/accounts/{provider}", {"provider"}),
        (f"/v1/runs/{running}", {CLIENT}),
    ):
        answers = {
            who: requests.get(
                served.url + path, headers=served.headers[who], timeout=WAIT_SECONDS
            ).status_code
            for who in WHO
        }
        assert {who for who, status in answers.items() if status == 200} == those, (path, answers)


def test_the_service_still_serves(served: Parties) -> None:
    answer = requests.get(f"{served.url}/v1/health", timeout=WAIT_SECONDS)
    assert answer.status_code == 200
    print(
        f"asked {ASKED.total()} times on {len({route for _, route in ASKED})} routes, as "
        f"{len(GOOD)} of {len(ASKED)} with a good answer"
    )
