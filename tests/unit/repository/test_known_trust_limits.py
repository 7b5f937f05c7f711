"""Shows each limit that docs/trust.md admits, so that the page stays true and complete."""

from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import fields

import quorate_contracts
from quorate_content.store.content_store import ContentStore
from quorate_coordinator.core.model.effects import Effect, Send
from quorate_coordinator.core.model.entities import Decided, Payee
from quorate_node.executors.selection import BANNER
from quorate_protocol.codec.hashing import hash_list
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames, job_spec
from quorate_protocol.messages.signed import CommitSet, Verdict
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import orders
from quorate_protocol.units import Comparator, Hash32, JobKind, Label, Outcome, VerifyTier
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from quorate_runtime.peers.websocket_peers import Hello
from support.markets.scripted_market import COORDINATOR, DOMAIN, Market, Party
from support.messages import a_spec

ABI = Path(quorate_contracts.__file__).parent / "abi"


def verdict_of(market: Market, job_id: Hash32) -> Verdict:
    market.until_decided(job_id)
    phase = market.job(job_id).phase
    assert isinstance(phase, Decided)
    return phase.verdict.message


@pytest.mark.rule("7.6")
def test_two_owners_who_collude_pass_a_wrong_result() -> None:
    market = Market(Party(0, lies=True, tale=9), Party(1, lies=True, tale=9), Party(2))
    honest = list(market.parties.values())[2]
    outcomes = []
    for nonce in range(1, 13):
        found = verdict_of(market, market.order(0, nonce))
        outcomes.append((found.outcome, bool(honest.commits.keys() & set(found.group))))
        if outcomes[-1] == (Outcome.ACCEPTED, False):
            break
    assert outcomes[-1] == (Outcome.ACCEPTED, False), (
        "the drawn second was the other colluder, and nothing told them apart"
    )


@pytest.mark.rule("I4", "5.35", "5.37")
def test_a_nondeterministic_program_is_paid_and_no_provider_faulted() -> None:
    market = Market(*[Party(number, lies=True) for number in range(5)])
    found = verdict_of(market, market.order(0, 1))
    assert found.outcome is Outcome.UNRESOLVED and not found.faulted
    assert sum(payee.final + payee.held > 0 for payee in market.core.state.payees.values()) >= 3


@pytest.mark.rule("3.10", "5.42", "7.11")
def test_too_few_owners_are_refused_unless_unverified_is_accepted() -> None:
    market = Market(Party(0), Party(1))
    with pytest.raises(Refused) as refused:
        market.order(0, 1)
    assert refused.value.code is Code.TOO_FEW_OWNERS
    found = verdict_of(market, market.order(0, 2, accept_unverified=True))
    assert found.outcome is Outcome.ACCEPTED and found.label is Label.UNVERIFIED


@pytest.mark.rule("3.18", "5.18", "7.5")
def test_the_commit_set_shows_which_providers_were_skipped() -> None:
    seen: list[CommitSet] = []

    class MarketWithoutAssignmentsForTwo(Market):
        """A market in which two of seven providers send heartbeats and never receive an
        assignment.
        """

        def _perform(self, effect: Effect) -> None:
            if isinstance(effect, Send) and isinstance(effect.frame, frames.CommitSetSent):
                seen.append(effect.frame.commit_set.message)
            is_lost = isinstance(effect, Send) and isinstance(effect.frame, frames.AssignmentSent)
            if not (is_lost and self.parties[effect.peer].number > 4):
                super()._perform(effect)

    market = MarketWithoutAssignmentsForTwo(*[Party(number) for number in range(7)])
    for nonce in range(1, 30):
        verdict_of(market, market.order(0, nonce))
        if any(item.skips_hash != hash_list(()) for item in seen):
            return
    raise AssertionError("somebody was drawn who did not answer, and no CommitSet says so")


@pytest.mark.rule("7.7")
async def test_a_machine_owner_can_read_the_inputs(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store", 1 << 30, 1 << 30)
    secret = b"the client's own table, in plain text" * 10
    await store.put(secret, "lease")
    await store.close()
    assert any(
        secret in path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()
    )


def test_the_process_executor_warns_that_it_has_no_sandbox() -> None:
    assert "NO PROTECTION" in BANNER and "Devnets only" in BANNER and "\033[1;41" in BANNER, (
        "in red"
    )


@pytest.mark.rule("5.20", "5.96", "5.97", "5.98", "8.2")
@pytest.mark.parametrize(
    "change",
    [
        {"seal_key": Hash32(b"\x01" * 32)},
        {"egress": ("*",)},
        *({"kind": kind} for kind in (JobKind.ARRAY, JobKind.TRAIN)),
        *(
            {"compare": job_spec.Compare(comparator)}
            for comparator in (Comparator.IMAGE, Comparator.PROGRAM)
        ),
    ],
)
def test_unsupported_job_features_are_refused(change: dict[str, object]) -> None:
    job_spec.validate(a_spec("plain"))
    with pytest.raises(Refused):
        job_spec.validate(replace(a_spec("plain"), **change))  # type: ignore[arg-type]


def test_an_unrevealed_execution_lapses_unpaid_and_is_replaced() -> None:
    mute = Party(0, lies=True, is_mute=True)  # the cheapest provider, so it is matched first
    market = Market(mute, *[Party(number) for number in range(1, 5)])
    for nonce in range(1, 6):
        found = verdict_of(market, market.order(0, nonce))
        assert found.outcome is Outcome.ACCEPTED and not mute.commits.keys() & set(found.group)
    owed = market.core.state.payees.get(mute.owner) or Payee(mute.owner)
    assert mute.commits and owed.final == owed.held == 0


@pytest.mark.rule("4.19", "4.20", "7.9")
def test_no_tier_by_attestation_can_be_ordered() -> None:
    market, seen = Market(*[Party(number) for number in range(5)]), []
    market.send = seen.append  # type: ignore[method-assign]
    changes: tuple[dict[str, object], ...] = ({}, {"verify_tier": VerifyTier.TEE})
    for change in changes:
        market.order(0, 1, prepays=False, **change)
    good, asked = (event.submission for event in seen)
    check = partial(
        orders.validate,
        domain=DOMAIN,
        recover=recover,
        coordinator=COORDINATOR.address,
        now=market.at,
        limits=DEVNET,
    )
    check(good)
    with pytest.raises(Refused) as refused:
        check(asked)
    assert refused.value.code is Code.UNSUPPORTED


def test_hello_over_websocket_binds_no_peer_key() -> None:
    assert {field.name for field in fields(Hello)} == {"account", "key", "sig"}
