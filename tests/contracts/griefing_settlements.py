"""Attacks by settlements of single jobs, run to their ends under mainnet's rules."""

from collections.abc import Sequence
from typing import Any

from contracts.epoch_leaves import CLIENT, OWNERS, C, post
from contracts.fault_evidence import provers_market
from contracts.griefing_accounts import Damage, Grievance, grievance
from contracts.griefing_court import world
from contracts.griefing_epochs import COORDINATORS
from contracts.market import BOSS, POSTER, Market, key
from contracts.settlement_evidence import PAY, job, opened, voucher
from quorate_contracts.bindings.settlement import JobEvidence, Opening, ShownCredit
from quorate_contracts.bindings.settlement_events import SettlementAnswered
from quorate_protocol.crypto.hashing import keccak256
from quorate_protocol.crypto.merkle import FullLog, credit_entry
from quorate_protocol.limits import MAINNET, USD
from quorate_protocol.rules.epoch_tree import Leaf, prove
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32

ACCOUNTS = 250  # in the epoch that an answer shows, so that its proof is long
ENTRIES = 250  # in each log of credits
OLD_CREDIT = Amount(10 * USD)  # of jobs that nobody can settle any more
DEAR: dict[str, Any] = {"price_per_hour": 180 * USD, "max_price_per_hour": 180 * USD}
DEAR |= {"budget": Amount(3 * USD)}
GREEDY: dict[str, Any] = DEAR | {"usage_ms": 10**9, "max_duration": 10**6}
DEAR_PAY = 20_000 * 180 * USD // 3_600_000  # of one execution of a dear job


def _market() -> Market:
    made = provers_market(world)
    made.evm.travel(100)
    return made


def credited_job() -> Damage:
    """Somebody announces a job that an epoch credits, and its coordinator has to answer.

    The client's nonce floor is below the job, because a longer job of the client still runs.
    """
    made = _market()
    evidence = job(made, CLIENT, 7, OWNERS[:3])
    leaves, logs = _full_epoch(made, evidence)
    post(made, 1, leaves, voucher(made, 20 * USD, 5))
    with grievance(made, {BOSS.address}) as grief:
        opening: Opening | None = opened(made, evidence)
        for share, log in enumerate(logs):
            assert opening is not None
            provider = evidence.executions[share].assignment.message.provider
            proof = ShownCredit(1, *prove(leaves, provider), Amount(PAY), log.prove(ENTRIES // 2))
            opening = _answer(grief, opening, share, proof)
        return grief.ended()


def _full_epoch(made: Market, evidence: JobEvidence) -> tuple[list[Leaf], list[FullLog]]:
    """An epoch of many accounts that credits a job, and the logs of the job's providers."""
    leaves, logs = {}, []
    for each in evidence.executions:
        message = each.assignment.message
        entries = [
            credit_entry(keccak256(b"job %d" % place), Amount(1)) for place in range(ENTRIES)
        ]
        entries[ENTRIES // 2] = credit_entry(message.assignment_id, Amount(PAY))
        log = FullLog(entries)
        index = made.evm.ask(made.contracts.stakes.index_of(message.provider))
        leaves[index] = Leaf(index, message.provider, Amount(2 * PAY), Amount(0), log.root())
        logs.append(log)
    for index in range(100, 100 + ACCOUNTS):
        leaves[index] = Leaf(index, key(f"account{index}").address, Amount(1), Amount(0), ZERO_HASH)
    return [leaves[index] for index in sorted(leaves)], logs


def _answer(grief: Grievance, opening: Opening, share: int, proof: ShownCredit) -> Opening | None:
    """Sends an answer at the coordinator's cost; returns what is left of the announcement."""
    found: list[Opening] = []

    def send() -> None:
        call = grief.world.contracts.settlement.answer(opening, share, proof)
        (event,) = grief.world.evm.send(key("anybody").address, call).events
        assert isinstance(event, SettlementAnswered)
        found.append(Opening.of(event.opening))

    grief.charge(send, [C])
    return found[0]


def liars_outvoted() -> Damage:
    """Two liars announce a settlement, and the coordinator shows those who outvoted them."""
    made = _market()
    liars, honest = OWNERS[:2], OWNERS[2:5]
    lie = job(made, CLIENT, 7, liars, b"a lie")
    truth = job(made, CLIENT, 7, honest[:2], first_index=2)
    with grievance(made, {*liars, BOSS.address}) as grief:
        opening = opened(made, lie)
        call = made.contracts.settlement.outvote(opening, truth)
        grief.charge(lambda: made.evm.send(key("anybody").address, call), [C])
        return grief.ended()


def after_a_halt() -> Damage:
    """A coordinator vanishes with a job that it never credited; the two providers settle it."""
    made = _market()
    post(made, 1, [Leaf(1, C, Amount(1), Amount(0), ZERO_HASH)], voucher(made, 1, 0))
    evidence = job(made, CLIENT, 7)
    owed = made.statement(OWNERS[0], USD, epoch=2)
    approve = made.contracts.token.approve(made.contracts.challenges.address)
    made.evm.send(OWNERS[0], approve)
    with grievance(made, COORDINATORS) as grief:
        challenges, settlement = made.contracts.challenges, made.contracts.settlement
        made.evm.send(OWNERS[0], challenges.demand_epoch(C, owed))
        made.evm.travel(MAINNET.halt_after + 1)
        made.evm.send(OWNERS[0], challenges.halt(C))
        _worked(grief, OWNERS[:2], PAY)
        grief.charge(lambda: _settled(grief, evidence), OWNERS[:2])
        assert made.evm.ask(settlement.settled(CLIENT.address, C, evidence.order.message.nonce))
        return grief.ended()


def _worked(grief: Grievance, providers: Sequence[Address], pay: int) -> None:
    """These providers computed for the client, and nobody has paid them."""
    for provider in providers:
        grief.work[provider] += pay
        grief.work[CLIENT.address] -= pay


def _settled(grief: Grievance, evidence: JobEvidence) -> None:
    """Announces and executes a settlement that nobody answers."""
    made = grief.world
    opening = opened(made, evidence)
    made.evm.travel(MAINNET.settle_response)
    made.evm.send(BOSS.address, made.contracts.settlement.execute(opening))


def own_pair(is_halted: bool) -> Damage:
    """A coordinator settles 18 orders of 3 USD, and two providers of its own sign the results.

    With `is_halted` it vanished before, and its bond is gone.
    """
    made = _market()
    post(made, 1, [Leaf(1, C, Amount(1), Amount(0), ZERO_HASH)], voucher(made, 1, 0))
    jobs = [job(made, CLIENT, nonce, OWNERS[:2], **GREEDY) for nonce in range(12, 30)]
    halting = made.statement(OWNERS[2], USD, epoch=2)
    made.evm.send(OWNERS[2], made.contracts.token.approve(made.contracts.challenges.address))
    with grievance(made, {*COORDINATORS, *OWNERS[:2]}) as grief:
        if is_halted:
            made.evm.send(OWNERS[2], made.contracts.challenges.demand_epoch(C, halting))
            made.evm.travel(MAINNET.halt_after + 1)
            made.evm.send(OWNERS[2], made.contracts.challenges.halt(C))
        made.evm.send(POSTER.address, made.contracts.settlement.settle_many(C, jobs))
        return grief.ended()


def old_credit() -> Damage:
    """A coordinator answers the settlement of a job that it does not credit, from old credit.

    It writes the job into the log under a leaf whose sum stays as it was, so no challenge hits the
    epoch. The providers that ran the job announced it, and lose its pay.
    """
    made = _market()
    evidence = job(made, CLIENT, 7, **DEAR)
    providers = OWNERS[:2]
    logs = [
        FullLog([credit_entry(each.assignment.message.assignment_id, Amount(DEAR_PAY))])
        for each in evidence.executions
    ]
    old = _leaves(made, providers, [ZERO_HASH] * 2)
    post(made, 1, old, voucher(made, 2 * OLD_CREDIT, 5))
    with grievance(made, COORDINATORS) as grief:
        _worked(grief, providers, DEAR_PAY)
        found: list[Opening | None] = []
        grief.charge(lambda: found.append(opened(made, evidence)), providers)
        forged = _leaves(made, providers, [log.root() for log in logs])
        post(made, 2, forged)
        opening = found[0]
        for share, (provider, log) in enumerate(zip(providers, logs, strict=True)):
            assert opening is not None
            proof = ShownCredit(2, *prove(forged, provider), Amount(DEAR_PAY), log.prove(0))
            opening = _answer(grief, opening, share, proof)
        return grief.ended()


def _leaves(made: Market, providers: Sequence[Address], roots: Sequence[Hash32]) -> list[Leaf]:
    """Old credits of these providers, with these logs under them."""
    stakes = made.contracts.stakes
    return [
        Leaf(made.evm.ask(stakes.index_of(each)), each, OLD_CREDIT, Amount(0), root)
        for each, root in zip(providers, roots, strict=True)
    ]


def credited_job_unanswered() -> Damage:
    """A provider is paid by an epoch, settles the same job, and nobody answers."""
    made = _market()
    evidence = job(made, CLIENT, 7, **DEAR)
    leaves = _leaves(made, OWNERS[:2], [ZERO_HASH] * 2)
    post(made, 1, leaves, voucher(made, 2 * OLD_CREDIT, 5))
    with grievance(made, OWNERS[:2]) as grief:
        grief.charge(lambda: _settled(grief, evidence), OWNERS[:2])
        return grief.ended()
