"""All providers are challenged by the first beacon round of a period, and start in time."""

import pytest

from quorate_attestation.sessions.schedule import challenge_round, check_start
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.messages.beacon_rounds import round_time
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Round, Seconds, UnixSeconds
from support.attestation.challenges import challenge

GENESIS = 1_000
INFO = BeaconInfo(b"", Seconds(7), GENESIS)


@pytest.mark.rule("10.19")
def test_a_period_has_one_round_for_everybody() -> None:
    for limits in (MAINNET, DEVNET):
        every = limits.attestation_every
        for period in range(5):
            begun = GENESIS + period * every
            found = {challenge_round(INFO, begun + passed, limits) for passed in range(every)}
            (number,) = found
            assert begun <= round_time(INFO, number) < begun + INFO.period


@pytest.mark.rule("10.19")
def test_another_round_or_a_late_start_is_refused() -> None:
    begun = GENESIS + 3 * MAINNET.attestation_every
    number = challenge_round(INFO, begun, MAINNET)
    shown = round_time(INFO, number)
    opened = challenge(round_number=1)
    cases = [
        (number, shown, None),
        (number, shown + 60, None),
        (number, shown + 61, Code.TOO_LATE),
        (Round(number + 1), shown + 10, Code.STALE),
        (Round(number - 1), shown + 10, Code.STALE),
        (number, shown + MAINNET.attestation_every, Code.STALE),
    ]
    for chosen, now, code in cases:
        beacon = type(opened.beacon)(Round(chosen), b"", b"")
        tried = type(opened)(
            opened.provider, opened.peer_key, beacon, opened.verifiers, opened.draw, opened.gpus
        )
        if code is None:
            check_start(tried, INFO, UnixSeconds(now), MAINNET)
            continue
        with pytest.raises(Refused) as refused:
            check_start(tried, INFO, UnixSeconds(now), MAINNET)
        assert refused.value.code is code
