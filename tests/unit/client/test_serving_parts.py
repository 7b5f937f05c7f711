"""Tests the parts of a service that need no network: keys, scale, choice, tokens, its file."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from quorate.base.errors import UsageError
from quorate.client.wanting_services import FOLDER, FRESH_SECONDS, put_want, wanting
from quorate.job.yaml_reader import load_yaml
from quorate.serving.key_book import Denied, KeyBook, Rates, Usage, parse_rate
from quorate.serving.meters import Meters, TokenCounter
from quorate.serving.replicas import Health, Replica, Replicas, is_canary
from quorate.serving.scaling import KEEP_SECONDS, Backoff, Scale, Scaler
from quorate.serving.service_file import service_of

FILE = b"""
type: service
name: chat
image: model.tar
command: [serve]
max_price: "0.5"
service:
  port: 8080
  probe: /health
  replicas: {min: 1, max: 4, in_flight: 2, idle: 1m}
  prices: {input: "0.10", output: "0.40"}
  canary: {share: 10%, command: [serve, --new]}
"""


def denied(book: KeyBook, text: str, now: float) -> str:
    with pytest.raises(Denied) as caught:
        book.allow(text, now)
    return caught.value.code


def test_a_key_is_kept_as_a_hash_and_ends_with_time_budget_and_revocation(tmp_path: Path) -> None:
    book = KeyBook(tmp_path)
    text = book.create("app", 1000.0, budget="2.5", expires="30m")
    files = b"".join(item.read_bytes() for item in tmp_path.iterdir())
    assert text.encode() not in files and b"app" in files
    assert book.allow(text, 1001.0).budget == 2_500_000
    assert denied(book, text + "x", 1001.0) == "invalid_api_key"
    assert denied(book, text, 1000.0 + 1800) == "invalid_api_key"
    alerts = [book.charge("app", "m", Usage(10, 20, 1_300_000)) for _ in range(3)]
    assert [[alert.percent for alert in each] for each in alerts] == [[50], [80, 100], []]
    assert denied(book, text, 1001.0) == "insufficient_quota"
    [used] = KeyBook(tmp_path).usage()
    assert (used.requests, used.tokens_in, used.tokens_out, used.spent) == (3, 30, 60, 3_900_000)
    other = book.create("other", 1000.0)
    book.revoke("other")
    assert denied(book, other, 1001.0) == "invalid_api_key"
    both = book.keys()
    assert [key.state(1001.0) for key in both] == ["valid", "revoked"]
    assert [key.state(2800.0) for key in both] == ["expired", "revoked"]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"name": ""}, "name"),
        ({"budget": "-1"}, "budget"),
        ({"rate": "60"}, "rate"),
        ({"rate": "0/m"}, "rate"),
        ({"expires": "never"}, "expires"),
        ({"webhook": "ftp://x"}, "webhook"),
    ],
)
def test_a_wrong_field_of_a_key_is_named(tmp_path: Path, fields: dict[str, str], what: str) -> None:
    book = KeyBook(tmp_path)
    with pytest.raises(UsageError, match=f"^{what}"):
        book.create(**{"name": "app", "now": 0.0, **fields})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no key"):
        book.revoke("app")
    book.create("app", 0.0)
    with pytest.raises(UsageError, match="choose another"):
        book.create("app", 0.0)


def test_a_rate_lets_a_period_through_at_once_and_then_its_share(tmp_path: Path) -> None:
    book, rates = KeyBook(tmp_path), Rates()
    key = book.allow(book.create("app", 0.0, rate="3/m"), 0.0)
    for _ in range(3):
        rates.take(key, 0.0)
    with pytest.raises(Denied) as caught:
        rates.take(key, 10.0)
    assert caught.value.status == 429 and caught.value.retry_after == pytest.approx(10.0)
    rates.take(key, 20.0)
    assert parse_rate("") == (0, 1) and parse_rate("5/s") == (5, 1)


def test_replicas_follow_the_demand_up_at_once_and_down_later() -> None:
    scaler = Scaler(Scale(least=0, most=4, in_flight=2, idle=300.0), busy_at=0.0)
    assert scaler.want(0, 1.0) == 1, "it was just made"
    assert scaler.want(5, 2.0) == 3
    assert scaler.want(100, 3.0) == 4
    assert scaler.want(1, 4.0) == 4
    assert scaler.want(1, 4.0 + KEEP_SECONDS) == 1
    assert scaler.want(0, 200.0) == 1
    assert scaler.want(0, 400.0) == 0
    assert scaler.want(1, 401.0) == 1
    warm = Scaler(Scale(least=1, most=4, in_flight=2, warm=1), busy_at=0.0)
    assert warm.want(0, 1.0) == 2
    assert warm.want(8, 2.0) == 4


def test_starts_that_fail_are_tried_less_and_less_often() -> None:
    backoff = Backoff()
    assert [backoff.failed(0.0) for _ in range(7)] == [2, 5, 15, 30, 60, 60, 60]
    backoff.worked()
    assert backoff.failed(100.0) == 2


def test_the_replica_with_fewest_requests_is_chosen_and_others_never() -> None:
    first, second = (
        Replica(name, "a", health=Health.READY, price=3_600_000_000) for name in ("1", "2")
    )
    loading = Replica("3", "a")
    replicas = Replicas([first, second, loading, Replica("4", "b", health=Health.READY)])
    begun = first.take(0.0)
    assert replicas.choose("a") is second
    assert replicas.choose("a", second) is first
    assert replicas.choose("a", first, second) is None and replicas.demand("a", 1.0) == 1
    other = first.take(10.0)
    assert first.give(20.0, begun) == pytest.approx(15e6)
    assert first.give(30.0, other) == pytest.approx(15e6)


def test_a_user_stays_with_a_canary_whose_share_grows() -> None:
    users = [f"user-{number}" for number in range(2000)]
    tenth = {user for user in users if is_canary(user, 0.1)}
    assert 140 < len(tenth) < 260
    assert tenth <= {user for user in users if is_canary(user, 0.5)}


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_tokens_are_counted_in_whole_and_streamed_answers(cut: int) -> None:
    whole = TokenCounter(is_stream=False)
    body = b'{"choices": [{}], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}'
    named = TokenCounter(is_stream=True)
    lines = b'data: {"choices": [{}]}\n\n' * 4
    last = b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 9}}\n\n'
    bare = TokenCounter(is_stream=True)
    for counter, data in (
        (whole, body),
        (named, lines + last + b"data: [DONE]\n\n"),
        (bare, b": hello\n" + lines + b"data: nonsense\n"),
    ):
        for at in range(0, len(data), cut):
            counter.feed(data[at : at + cut])
        counter.finish()
    assert (whole.tokens_in, whole.tokens_out) == (3, 5)
    assert (named.tokens_in, named.tokens_out) == (2, 9)
    assert (bare.tokens_in, bare.tokens_out) == (0, 4)


def test_the_file_of_a_service_says_what_runs_and_how_many(tmp_path: Path) -> None:
    service = service_of(load_yaml(FILE), tmp_path)
    assert service.canary is not None and service.canary.job.command == ("serve", "--new")
    assert service.stable.job.command == ("serve",) and service.share == 0.1
    assert service.stable.digest != service.canary.digest
    assert (service.scale.most, service.scale.in_flight, service.scale.idle) == (4, 2, 60.0)
    assert (service.prices.tokens_in, service.prices.tokens_out) == (100_000, 400_000)
    again = service_of(load_yaml(FILE.replace(b"max: 4", b"max: 3")), tmp_path)
    assert again.stable.digest == service.stable.digest


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (b"type: service", b"type: task", "type"),
        (b"port: 8080", b"port: 0", "service.port"),
        (b"port: 8080", b"ports: 80", "service.ports"),
        (b"min: 1", b"min: 9", "service.replicas"),
        (b"in_flight", b"in_fligth", "service.replicas.in_fligth: .* 'in_flight'"),
        (b"min: 1", b"zone: 1", "service.replicas.zone: .* nothing"),
        (b"idle: 1m", b"idle: soon", "service.replicas.idle"),
        (b"share: 10%", b"share: 100%", "service.canary.share"),
        (b"command: [serve, --new]", b"max_price: 1", "service.canary"),
        (b"command: [serve]", b"comand: [serve]", "comand"),
    ],
)
def test_a_wrong_key_of_a_service_is_named(
    tmp_path: Path, before: bytes, after: bytes, what: str
) -> None:
    with pytest.raises(UsageError, match=f"^{what}"):
        service_of(load_yaml(FILE.replace(before, after)), tmp_path)


def test_a_service_that_lacks_a_machine_is_first_until_it_has_one_or_is_gone(
    tmp_path: Path,
) -> None:
    assert wanting(tmp_path) == ""
    put_want(tmp_path, "chat", True)
    assert wanting(tmp_path) == "chat"
    put_want(tmp_path, "chat", False)
    assert wanting(tmp_path) == ""
    put_want(tmp_path, "chat", True)
    old = time.time() - FRESH_SECONDS - 1
    os.utime(tmp_path / FOLDER / "chat", (old, old))
    assert wanting(tmp_path) == ""


def test_the_dashboard_of_a_service_asks_for_what_the_gateway_tells() -> None:
    told = Meters().exposition(Replicas()).decode()
    board = json.loads((Path(__file__).parents[3] / "docker/grafana/service.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"quorate_service_[a-z_]+", target["expr"])
    }
    assert len(asked) == 7
    assert all(name.removesuffix("_bucket").removesuffix("_total") in told for name in asked)
