"""Tests the fields of a spec that only rentals have."""

from base64 import b64encode

import pytest

from quorate_protocol.messages.job_spec import JobSpec, decode, validate
from quorate_protocol.refusals import Code
from quorate_protocol.units import JobKind, Seconds
from quorate_protocol.values import replace
from support.markets.provider_world import make_spec
from support.refusals import refuses


def key(number: int = 0, name: str = "ssh-ed25519") -> str:
    head = len(name).to_bytes(4, "big") + name.encode()
    return f"{name} {b64encode(head + bytes([0, 0, 0, 32]) + bytes([number] * 32)).decode()}"


RENTAL = replace(make_spec("machine"), kind=JobKind.DEV_ENVIRONMENT)
BAD_KEYS = [
    "",
    key() + " me@home",
    key() + "\n" + key(1),
    key().replace("ssh-ed25519 ", "ssh-dss "),
    "ssh-ed25519 " + key(0, "ssh-rsa").split()[1],
    "ssh-ed25519 AAAA",
    "ssh-ed25519 ====",
    f'command="sh" {key()}',
    "ssh-rsa " + "A" * 1024,
]


@pytest.mark.rule("12.24")
def test_a_rental_names_who_may_connect() -> None:
    spec = replace(RENTAL, access=(key(), key(1)), idle_stop=Seconds(1800))
    validate(spec)
    assert decode(spec.encode()) == spec
    plain = RENTAL.encode()
    assert b"access" not in plain and b"idleStop" not in plain


@pytest.mark.rule("12.24")
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        *[(replace(RENTAL, access=(bad,)), "access") for bad in BAD_KEYS],
        (replace(RENTAL, access=(key(), key())), "access"),
        (replace(RENTAL, access=tuple(key(number) for number in range(17))), "access"),
        (replace(RENTAL, kind=JobKind.TASK, access=(key(),)), "access"),
        (replace(RENTAL, kind=JobKind.TASK, idle_stop=Seconds(1)), "idleStop"),
        (replace(RENTAL, idle_stop=Seconds(-1)), "idleStop"),
    ],
)
def test_other_access_is_refused_by_its_field(spec: JobSpec, field: str) -> None:
    with refuses(Code.MALFORMED, field):
        validate(spec)
