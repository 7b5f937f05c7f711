"""Tests the coordinator's core with signed nonsense from providers, clients and the chain.

Messages come in any order, with values at their limits. Every exception except `Refused` fails,
because it would end the running coordinator. `QUORATE_FUZZ` multiplies the examples.
`QUORATE_FUZZ_SHRINK=1` makes a failing example small, which takes minutes.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from fuzz.core_chain_rules import ChainRules
from fuzz.core_client_rules import ClientRules
from fuzz.core_machine import LIES, U64
from fuzz.core_provider_rules import ProviderRules
from quorate_coordinator.core.model import lease as leases
from quorate_protocol.limits import MAINNET, Limits
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Commit
from quorate_protocol.units import Hash32, UnixSeconds, VerifyTier

EFFORT = int(os.environ.get("QUORATE_FUZZ", "1"))


class CoreMachine(ClientRules, ProviderRules, ChainRules):
    """All rules together, with honest rounds between them."""

    # ---- honest rounds

    @initialize()
    def begin(self) -> None:
        for nonce in range(3):
            self.order(
                nonce % 2, 600 + nonce, 200_000, 7, VerifyTier.STANDARD, False, Hash32(bytes(32))
            )

    @rule(lies=LIES, usage=st.sampled_from([0, 1, 36_000, 60_000]), turns=st.integers(1, 4))
    def market_goes_on(self, lies: list[int], usage: int, turns: int) -> None:
        self.world.market_goes_on(lies, usage, turns)

    @rule(lies=LIES, usage=U64, turns=st.integers(5, 12), nonce=st.integers(1_000, 10**6))
    def market_goes_on_for_long(self, lies: list[int], usage: int, turns: int, nonce: int) -> None:
        self.order(nonce % 2, nonce, 200_000, 7, VerifyTier.LEAN, True, Hash32(bytes(32)))
        self.world.market_goes_on(lies, usage, turns)

    @rule()
    def everybody_is_well(self) -> None:
        self.world.everybody_is_well()


class AdaptiveMachine(CoreMachine):
    """Enough owners, and mainnet's limits, for the adaptive rule: holding, the fund, rates."""

    limits, owner_count = MAINNET, 9


def run(machine: type[CoreMachine], examples: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    phases = [
        Phase.reuse,
        Phase.generate,
        *([Phase.shrink] if "QUORATE_FUZZ_SHRINK" in os.environ else []),
    ]
    wanted = settings(
        max_examples=examples * EFFORT,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=checks,
        phases=phases,
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=wanted)  # type: ignore[no-untyped-call]


@pytest.mark.rule("3.9")
def test_signed_messages_of_any_values_break_nothing() -> None:
    run(CoreMachine, 25)


def test_signed_messages_of_any_values_break_nothing_under_the_adaptive_rule() -> None:
    run(AdaptiveMachine, 25)


def test_a_removed_check_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the check removed, the core accepts a Commit without an Accept. A receipt then needs
    an Accept that does not exist, and the fuzzing must get that far.
    """
    strict = leases._commit

    def lenient(
        lease: leases.Lease,
        commit: Envelope[Commit],
        at: UnixSeconds,
        known: UnixSeconds,
        limits: Limits,
    ) -> tuple[leases.Lease, tuple[leases.Effect, ...]]:
        if isinstance(lease.phase, leases.Assigned):
            return leases._to(lease, leases.Committed(commit, at), leases.Effect.SLOT_FREED)
        return strict(lease, commit, at, known, limits)

    monkeypatch.setattr(leases, "_commit", lenient)
    with pytest.raises(KeyError):
        run(CoreMachine, 500)
