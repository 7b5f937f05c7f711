"""Every route of the real service under requests made from its own OpenAPI document, fitting and unfitting: typed answers only.

`QUORATE_FUZZ` multiplies the examples.
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
from schemathesis.generation import GenerationMode

from coordinator_stage import deployed_stage, running
from fuzzing import COUNTS
from quorate_coordinator.api.operations import EVENTS, OPERATIONS, TEXT, Operation
from quorate_protocol.bearer import Bearer, make_token
from quorate_protocol.refusals import Code
from quorate_protocol.units import UnixSeconds
from quorate_runtime.crypto import KeySigner

EXAMPLES = 8 * int(os.environ.get("QUORATE_FUZZ", "1"))
CODES = {*Code, "unavailable"}
STREAMS = {item.path for item in OPERATIONS if item.answer in (EVENTS, TEXT) and item.path != "/metrics"}
SECONDS_MAX = 5.0  # of the processor, with those of whoever asks: what a request may cost
WAIT_SECONDS = 60.0  # by the clock, which says nothing on a machine that others use too
ASKED: Counter[str] = Counter()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """(URL, headers with a token of a stranger whose signature is good): the service in a thread with a loop of its own."""
    begun, ended = threading.Event(), asyncio.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        async with deployed_stage(tmp_path_factory.mktemp("api")) as stage, running(stage.service()) as service:
            key = KeySigner(b"\x42" * 32)
            bearer = Bearer(key.address, key.address, UnixSeconds(int(time.time()) + 3600))
            token = make_token(bearer, stage.deployment.chain_id, stage.keys.account.address, key.sign)
            found.update(url=service.url, token=token, loop=asyncio.get_running_loop())
            begun.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert begun.wait(60), "the service did not come up"
        yield found["url"], {"Authorization": found["token"]}
    finally:
        found["loop"].call_soon_threadsafe(ended.set)
        thread.join(30)


def takes_anything(item: Operation) -> bool:
    """Whether a request to it can be wrong at all."""
    return item.body is not None or bool(item.queries) or "{" in item.path


def check(response: requests.Response, seconds: float) -> None:
    """Typed, in time, and without a word about our insides."""
    assert seconds < SECONDS_MAX
    if response.status_code < 400:
        return
    if response.status_code == 412:  # only-if-cached of the gateway's specification, which has no body
        return
    tree = json.loads(response.text)
    assert set(tree) == {"code", "sentence", "detail"} and tree["code"] in CODES, response.text[:300]
    assert response.status_code not in (500, 504) and "Traceback" not in response.text, response.text[:300]


CASES = [(item, mode) for item in OPERATIONS for mode in GenerationMode if mode is GenerationMode.POSITIVE or takes_anything(item)]


@pytest.mark.parametrize(("item", "mode"), CASES, ids=[f"{item.method}{item.path}-{mode.value}" for item, mode in CASES])
def test_every_answer_is_typed(served: tuple[str, dict[str, str]], item: Operation, mode: GenerationMode) -> None:
    url, token = served
    schema = schemathesis.openapi.from_dict(requests.get(f"{url}/v1/openapi.json", timeout=10).json())
    operation = schema[item.path][item.method]
    session = requests.Session()
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=quiet, phases=[Phase.generate], database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def holds(case: Any) -> None:
        headers = {} if item.path in STREAMS else dict(token)
        begun = time.process_time()
        response = case.call(base_url=url, session=session, headers=headers, timeout=WAIT_SECONDS)
        ASKED[f"{item.method} {item.path}"] += 1
        COUNTS["requests"], COUNTS["routes"] = ASKED.total(), len(ASKED)
        check(response, time.process_time() - begun)

    with session:
        holds()


def test_the_service_still_serves(served: tuple[str, dict[str, str]]) -> None:
    answer = requests.get(f"{served[0]}/v1/health", timeout=5)
    assert answer.status_code == 200
    print(f"asked {ASKED.total()} times on {len(ASKED)} routes")
