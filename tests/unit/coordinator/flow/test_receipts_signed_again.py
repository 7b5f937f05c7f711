"""Tests receipts that a coordinator changed and signed again with its own key (PROTOCOL §5 Draw,
§7).

No signature is wrong, unlike after a changed byte. The check still refuses the receipt, because it
contradicts what the coordinator committed to before the draw.
"""

from functools import lru_cache

import pytest

from quorate_protocol.codec.hashing import hash_tuple, sha256
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.rules.audit_draw import is_audited, seed
from quorate_protocol.units import PPM_ONE, Ppm, VerifyTier
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import Market, Party
from support.receipts import failures, with_batch


@lru_cache(maxsize=1)
def small() -> Receipt:
    """Returns a receipt whose first try gave the auditor, so that it shows one try only."""
    market = Market(*[Party(number) for number in range(3)])
    for nonce in range(1, 20):
        market.until_decided(market.order(0, nonce))
        body: Receipt = market.receipt()
        if body.batches[0].message.slots == (0,):
            return body
    raise AssertionError("no first try gave an auditor")


@pytest.mark.rule("3.11", "3.18", "5.13")
def test_a_secret_that_was_chosen_after_the_round_is_noticed() -> None:
    """With three owners, every second secret draws the same auditor. Then only the hash in the Ack
    shows the change.
    """
    assert failures(small()) == set()
    found = [
        failures(with_batch(small(), secret=hash_tuple("another secret", number)))
        for number in range(64)
    ]
    assert all("hash:secret[0]" in names for names in found)
    assert {"hash:secret[0]"} in found, "it may be all that is wrong"


@pytest.mark.rule("5.12", "5.41", "7.1")
def test_a_rate_below_what_rule_and_witness_ask_is_noticed() -> None:
    lower = Ppm(PPM_ONE - 1)
    body = small()
    message = body.batches[0].message
    draw = seed(sha256(body.beacons[0].signature), message.job_id, message.secret, 0)
    assert is_audited(draw, lower), "and with it the draw would have been the same"
    assert failures(with_batch(body, audit_ppm=lower)) == {"rate[0]"}


@pytest.mark.rule("5.15", "7.1")
def test_an_audit_that_the_round_did_not_ask_for_is_noticed() -> None:
    """The beacon decides which jobs are audited. A job that the beacon did not choose has no
    auditors.
    """
    market = LargeMarket()
    first = market.order(0, 1, accept_unwitnessed=True, verify_tier=VerifyTier.LEAN)
    market.until_decided(first)
    body = market.receipt(0)
    assert failures(body) == set() and body.batches[0].message.slots, (
        "a newcomer's: audited at a rate of one"
    )
    draw = seed(
        sha256(body.beacons[0].signature),
        body.batches[0].message.job_id,
        body.batches[0].message.secret,
        0,
    )
    spared = next(
        ppm for ppm in (PPM_ONE // 2, 100_000, 20_000, 1) if not is_audited(draw, Ppm(ppm))
    )
    assert "rate[0]" in failures(with_batch(body, audit_ppm=Ppm(spared)))
