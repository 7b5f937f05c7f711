"""Signatures recovered beside the loop: the same answers and refusals, in the order of the questions."""

import asyncio
import threading

import pytest

from quorate_protocol.eip712 import Domain
from quorate_protocol.envelope import Envelope, seal
from quorate_protocol.hashing import hash_tuple
from quorate_protocol.messages import Voucher
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Amount, Hash32, Nonce, Signature
from quorate_runtime import crypto
from quorate_runtime.recovery import ON_THE_SPOT_MAX, Recoverer

DOMAIN = Domain(31337, Address(b"\x11" * 20))
KEYS = [crypto.KeySigner(hash_tuple("recovery", number)) for number in range(8)]


class Watched:
    """`crypto.recover`, and in which thread it ran."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def __call__(self, digest: Hash32, sig: Signature) -> Address:
        self.threads.append(threading.get_ident())
        return crypto.recover(digest, sig)


def sealed(number: int) -> Envelope[Voucher]:
    return seal(DOMAIN, Voucher(KEYS[number].address, Address(bytes(20)), Amount(number), Nonce(0)), KEYS[number].sign)


async def test_one_alone_is_recovered_on_the_spot() -> None:
    watched = Watched()
    assert await Recoverer(watched).signer(DOMAIN, sealed(3)) == KEYS[3].address
    assert watched.threads == [threading.get_ident()]


async def test_what_one_turn_asks_for_is_recovered_together_and_answered_in_order() -> None:
    watched, told = Watched(), list[Address]()
    recoverer = Recoverer(watched)

    async def ask(number: int) -> None:
        told.append(await recoverer.signer(DOMAIN, sealed(number)))

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(ask(number))
        while not watched.threads:
            await asyncio.sleep(0)
        for number in range(5, 8):  # asked while the thread is at work: behind it, though they are few
            group.create_task(ask(number))
    assert told == [key.address for key in KEYS]
    assert len(set(watched.threads[: ON_THE_SPOT_MAX + 1])) == 1 and watched.threads[0] != threading.get_ident()


async def test_a_bad_signature_is_refused_to_whoever_asked_and_to_nobody_else() -> None:
    recoverer = Recoverer()
    good = [sealed(number) for number in range(4)]
    impossible = Envelope(good[0].message, Signature(b"\xff" * 32 + b"\x01" * 32 + b"\x1b"))
    malformed = Envelope(good[0].message, Signature(b"short"))
    found = await asyncio.gather(*(recoverer.signer(DOMAIN, each) for each in (*good, impossible, malformed)), return_exceptions=True)
    assert found[:4] == [key.address for key in KEYS[:4]]
    for refused in found[4:]:
        assert isinstance(refused, Refused) and refused.code is Code.BAD_SIGNATURE


async def test_who_stopped_waiting_keeps_nobody_else_from_an_answer() -> None:
    recoverer = Recoverer()
    tasks = [asyncio.ensure_future(recoverer.signer(DOMAIN, sealed(number))) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [found[0], found[2], found[3]] == [KEYS[0].address, KEYS[2].address, KEYS[3].address]
    assert isinstance(found[1], asyncio.CancelledError)


async def test_rules_find_known_what_was_recovered_ahead() -> None:
    watched = Watched()
    recoverer, envelope = Recoverer(watched), sealed(2)
    known = await recoverer.ahead(DOMAIN, envelope, crypto.recover)
    assert known(envelope.digest(DOMAIN), envelope.sig) == KEYS[2].address
    other = sealed(5)
    assert known(other.digest(DOMAIN), other.sig) == KEYS[5].address, "what was not asked ahead is recovered as ever"
    assert len(watched.threads) == 1
    bad = Envelope(envelope.message, Signature(b"\xff" * 32 + b"\x01" * 32 + b"\x1b"))
    refusing = await recoverer.ahead(DOMAIN, bad, crypto.recover)
    with pytest.raises(Refused):
        refusing(bad.digest(DOMAIN), bad.sig)
