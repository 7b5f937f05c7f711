"""Runs some contract tests on eth-tester and on anvil too, by AsyncWeb3.

`make contracts-on CHAIN=anvil` runs all of them there.
"""

from collections.abc import Callable

import pytest

from contracts import (
    test_beacon_proof,
    test_burns,
    test_requests,
    test_stakes,
    test_token_and_deploy,
    test_typed_calls,
)
from contracts.evm import CHOICE
from contracts.market import key, market
from contracts.web3_evm import Web3Evm

SOME: tuple[Callable[[], None], ...] = (
    test_stakes.test_a_key_counts_from_its_first_to_its_last_second_inclusive,
    test_burns.test_a_top_up_restores_what_is_missing_and_no_more,
    test_beacon_proof.test_signatures_of_other_rounds_and_keys_are_refused,
    test_requests.test_a_malleable_signature_is_refused,
    test_token_and_deploy.test_tokens_move_as_far_as_balance_and_allowance_reach,
    test_typed_calls.test_money_goes_from_a_client_by_vouchers_and_payroll_to_a_payout_address,
)
KINDS = ("eth-tester", pytest.param("anvil", marks=pytest.mark.anvil))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("test", SOME, ids=lambda test: test.__name__.removeprefix("test_"))
def test_some_hold_on_other_chains(
    kind: str, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOICE, kind)
    test()


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_does_not_see_what_another_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node has one state, so it goes back and executes again."""
    monkeypatch.setenv(CHOICE, kind)
    first = market()
    second = first.fork()
    root = first.evm.state_root
    assert isinstance(first.evm, Web3Evm) and root
    for world, names in ((first, "abc"), (second, "de"), (first, "fg")):
        for name in names:
            world.fund(key(name))
    held = [
        [world.balance(key(name).address) > 0 for name in "abcdefg"] for world in (first, second)
    ]
    assert held == [[name in kept for name in "abcdefg"] for kept in ("abcfg", "de")]
    assert root not in (first.evm.state_root, second.evm.state_root)
