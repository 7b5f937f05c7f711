"""A provider settles a job on a chain without its coordinator (PROTOCOL §6)."""

import pytest

from contracts.market import Key
from contracts.settlement_evidence import PAY, Signing, signed_job
from quorate_contracts.bindings.settlement import JobEvidence
from quorate_devnet.chain.accounts import dev_account
from quorate_node.chain.calls import ask
from quorate_node.chain.owner_desk import owner_desk
from quorate_node.chain.settling import FOLDER, Settling, settle
from quorate_protocol.limits import USD
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.epoch_tree import Leaf
from quorate_protocol.units import ZERO_HASH, Amount, Hash32
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner
from support.markets.scripted_coordinator import COORDINATOR, OPERATOR, OWNER, STATEMENT, Stage

CLIENT, OTHER, OTHER_OPERATOR = (KeySigner(dev_account(i)) for i in (14, 15, 16))


async def with_job(market: Stage, nonce: int = 1) -> JobEvidence:
    """Registers two providers and a client, and returns evidence of a job that both executed."""
    c, words = market.contracts, Hash32(b"\x01" * 32)
    deployer = KeySigner(dev_account(0))
    async with market.fast():
        await market.send(deployer, "settled client", c.token.mint(CLIENT.address, Amount(9 * USD)))
        for who, operator in ((OWNER, OPERATOR), (OTHER, OTHER_OPERATOR)):
            network = Hash32(operator.address.rjust(32, b"\0"))
            call = c.stakes.register(operator.address, who.address, words, words, network)
            await market.send(who, "register", call)
        calls = (
            c.token.approve(c.escrow.address),
            c.escrow.deposit(Amount(9 * USD)),
            c.escrow.allocate(COORDINATOR.address, Amount(9 * USD)),
        )
        await market.send(CLIENT, "deposit", *calls)
        # The evidence is 40 s old, and a key counts only after it was registered.
        head = await market.client.head()
        await market.client.rpc.request("evm_mine", hex(head.time + 60))
    head = await market.client.head()
    client, statement, operator, other = (
        Key(bytes(dev_account(i)), KeySigner(dev_account(i)).address) for i in (14, 13, 11, 16)
    )
    keys = {OWNER.address: operator, OTHER.address: other}
    signing = Signing(
        c.deployment.domain(), head.time, client, client, COORDINATOR.address, statement, keys
    )
    assert statement.address == STATEMENT.address
    return signed_job(signing, nonce, (OWNER.address, OTHER.address), b"answer", 0, {})


async def step(market: Stage, evidence: JobEvidence) -> Settling:
    config = market.daemon(market.coordinator.url).config
    async with owner_desk(config, market.keys(), SystemClock()) as desk, market.fast():
        return await settle(desk, evidence)


@pytest.mark.rule("6.35")
async def test_a_provider_gets_its_pay_without_the_coordinator(market: Stage) -> None:
    """Chain time runs ahead, so the time for answers may be over within the first command."""
    evidence, done = await with_job(market), list[str]()
    while "settled the job" not in done:
        found = await step(market, evidence)
        assert found.done or found.waits[0].until
        done += found.done
    said = ["announced the settlement", "settled the job", "took 0.005 USD of settled jobs"]
    assert done == said
    c = market.contracts
    assert await ask(market.client, c.token.balance_of(OWNER.address)) == 1000 * USD + PAY
    over = await step(market, evidence)
    assert over.done == ("this job is settled",)
    assert not list((market.home / FOLDER).iterdir())


@pytest.mark.rule("6.26", "6.35")
async def test_what_the_coordinator_settles_is_not_announced(market: Stage) -> None:
    evidence = await with_job(market)
    async with market.fast():
        call = market.contracts.settlement.settle_job(evidence)
        await market.send(COORDINATOR, "settle", call)
    over = await step(market, evidence)
    assert over.done == ("this job is settled", "took 0.005 USD of settled jobs")


async def test_an_order_below_the_floor_is_refused_before_anything_is_sent(market: Stage) -> None:
    from support.markets.posted_epochs import post_epoch

    evidence = await with_job(market, nonce=0)
    async with market.fast():
        await post_epoch(market, [Leaf(3, OWNER.address, Amount(80), Amount(0), ZERO_HASH)])
    with pytest.raises(Refused) as refused:
        await step(market, evidence)
    assert refused.value.code is Code.STALE
