"""`quorate withdraw` after a halt, on the real contracts: it needs no coordinator's word."""

from pathlib import Path

import pytest

from contracts.epoch_leaves import CLIENT, OWNERS, C
from contracts.halted_client import DEPOSIT, Client, KilledError, demand, halt, posted, send
from contracts.market import POSTER, Key, Market, key
from contracts.settlement_evidence import PAY, job
from quorate.client.money.halts import halt_lines
from quorate.client.money.taking_out import state_lines
from quorate.errors import RefusedError
from quorate_protocol.limits import MAINNET, USD
from quorate_protocol.units import Address, Amount

SETTLE, HELD = MAINNET.halt_settle, MAINNET.halt_held
RELEASE, DELAY = MAINNET.allocation_release, MAINNET.withdrawal_delay
CHARGED = 1_500_000
LEFT = DEPOSIT - CHARGED
SHARE = 750_000  # 2 USD were charged, 0.5 are final and 0.5 held; three quarters are the client's
SAFE = Address(b"\x77" * 20)


def market() -> Market:
    """Returns a market whose last epoch owes nobody 1 USD of the 2 that clients paid in."""
    return posted(500_000, 500_000, CHARGED, 500_000)


def wallet(world: Market, account: Address = CLIENT.address) -> int:
    return world.balance(account)


def second_coordinator(world: Market) -> tuple[Key, Key]:
    """Registers another coordinator, and allocates 10 USD of the client to it."""
    boss, statements = world.fund(key("second")), key("second statements")
    poster = key("second poster").address
    stakes, escrow = world.contracts.stakes, world.contracts.escrow
    send(world, stakes.register_coordinator(statements.address, poster), boss)
    send(world, escrow.deposit(Amount(10 * USD)), CLIENT)
    send(world, escrow.allocate(boss.address, Amount(10 * USD)), CLIENT)
    return boss, statements


@pytest.mark.rule("4.74", "6.49")
async def test_all_that_a_halted_coordinator_has_comes_out_at_its_dates(tmp_path: Path) -> None:
    client = Client.of(market(), tmp_path)
    client.promise(1, charged=CHARGED + 3 * USD)  # a voucher that nobody can post any more
    client.promise(2)
    world, before = client.world, wallet(client.world)
    at = halt(world)
    for _ in range(2):
        state = await client.withdraw()
        assert (state.paid, state.ready_at, state.record.amount) == (None, at + SETTLE, LEFT)
        assert state.record.release == 0, "no release of 9 days is announced"
    assert (await client.flow().balances()).coordinators[0].withdrawable == LEFT
    lines = state_lines(state, "quorate withdraw")
    assert f"0x{C.hex()} was halted" in lines[1] and "48.50 USD of its allocation" in lines[2]
    world.evm.now = at + SETTLE - 1
    assert (await client.withdraw()).paid is None and client.node.sent == ["announce"]
    world.evm.now += 1
    state = await client.withdraw()
    assert (state.paid, wallet(world) - before) == (LEFT, LEFT)
    [(coordinator, found)] = state.halted
    assert (coordinator, found.rest, found.rest_from) == (C, SHARE, at + HELD)
    assert "0.75 USD" in state_lines(state, "quorate withdraw")[2]
    with pytest.raises(RefusedError, match=r"at most 0\.00 USD .*0\.75 USD that its last epoch"):
        await client.withdraw()

    world.evm.now = at + HELD
    state = await client.withdraw()
    assert (state.paid, state.record.amount, state.halted) == (None, SHARE, ())
    assert state.ready_at == at + HELD + DELAY
    world.evm.now = state.ready_at
    assert (await client.withdraw()).paid == SHARE
    assert wallet(world) - before == LEFT + SHARE
    named = [purpose.split("/")[0] for purpose in client.node.sent]
    assert named == ["announce", "release-halted", "finish", "announce", "take-rest", "finish"]
    with pytest.raises(RefusedError) as refused:
        await client.withdraw()
    assert "halted" not in str(refused.value)


@pytest.mark.rule("4.74", "4.39")
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("is_mined", [False, True])
async def test_a_withdrawal_killed_at_any_transaction_goes_on(
    tmp_path: Path, number: int, is_mined: bool
) -> None:
    client = Client.of(market(), tmp_path)
    world = client.world
    world.evm.now = halt(world) + HELD
    if is_mined:
        client.node.killed_after = number
    else:
        client.node.killed_before = number
    killed = 0
    for _ in range(3):
        try:
            state = await client.withdraw(to=SAFE)
        except KilledError:
            killed, client.node.killed_before, client.node.killed_after = killed + 1, -1, -1
        else:
            world.evm.now = max(world.evm.now, state.ready_at)
            if state.paid is not None:
                break
    assert (killed, state.paid, wallet(world, SAFE)) == (1, LEFT + SHARE, LEFT + SHARE)
    named = [purpose.split("/")[0] for purpose in client.node.sent]
    assert named == ["announce", "release-halted", "take-rest", "finish", "transfer"]


@pytest.mark.rule("4.74")
async def test_an_announced_release_that_is_due_first_is_finished(tmp_path: Path) -> None:
    client = Client.of(market(), tmp_path)
    client.promise(1)
    state = await client.withdraw()
    promised = LEFT - state.record.amount
    assert promised > 0 and state.ready_at == client.world.evm.now + RELEASE
    client.world.evm.travel(RELEASE - MAINNET.halt_after - SETTLE + 60)
    halt(client.world)
    waiting = await client.withdraw()
    assert waiting.ready_at == state.ready_at
    client.world.evm.now = state.ready_at
    paid = await client.withdraw()
    assert paid.paid == LEFT - promised and "finish-release" in client.node.sent[-2]
    client.world.evm.travel(60)
    await client.withdraw()
    client.world.evm.travel(DELAY)
    assert (await client.withdraw()).paid == promised


@pytest.mark.rule("4.74")
async def test_a_halt_shortens_an_announced_release(tmp_path: Path) -> None:
    client = Client.of(market(), tmp_path)
    client.promise(1)
    announced = await client.withdraw()
    at = halt(client.world)
    state = await client.withdraw()
    assert state.ready_at == at + SETTLE < announced.ready_at
    client.world.evm.now = at + SETTLE
    paid = await client.withdraw()
    promised = LEFT - announced.record.amount
    assert paid.paid == announced.record.amount and paid.more == promised
    assert any("more came back from halted" in line for line in state_lines(paid, "repeat"))
    named = [purpose.split("/")[0] for purpose in client.node.sent]
    assert named == ["announce", "release", "release-halted", "finish"]


@pytest.mark.rule("4.74")
async def test_vouchers_beyond_an_announced_release_wait_for_the_halts_date(tmp_path: Path) -> None:
    """They cannot be posted, but their jobs can be settled until then."""
    client = Client.of(market(), tmp_path)
    await client.withdraw()
    client.promise(1, charged=CHARGED + 4 * USD)
    at = halt(client.world)
    client.world.evm.now = at + SETTLE - 1
    assert (await client.withdraw()).ready_at == at + SETTLE
    assert client.node.sent == ["announce", "release"] and not client.said
    client.world.evm.now += 1
    assert (await client.withdraw()).paid == LEFT


@pytest.mark.rule("4.74")
async def test_a_halted_coordinator_that_the_profile_does_not_name_gives_back(
    tmp_path: Path,
) -> None:
    client = Client.of(market(), tmp_path)
    second, statements = second_coordinator(client.world)
    client.promise(9, charged=1, coordinator=second)
    at = halt(client.world, second, statements)
    client.world.evm.travel(60)
    state = await client.withdraw(8 * USD)
    assert (state.record.release, state.ready_at) == (0, at + SETTLE)
    client.world.evm.now = at + SETTLE
    paid = await client.withdraw()
    assert (paid.paid, paid.more, paid.halted) == (8 * USD, 2 * USD, ())
    # The rest of both: 2 USD are free, and the living coordinator's allocation takes a release.
    state = await client.withdraw()
    assert (state.record.amount, state.record.release) == (LEFT + 2 * USD, LEFT)


@pytest.mark.rule("4.74")
async def test_a_withdrawal_that_needs_no_halted_money_does_not_wait_for_it(tmp_path: Path) -> None:
    client = Client.of(market(), tmp_path)
    send(client.world, client.world.contracts.escrow.deposit(Amount(5 * USD)), CLIENT)
    halt(client.world)
    state = await client.withdraw(5 * USD)
    assert state.ready_at == client.world.evm.now + DELAY
    client.world.evm.now = state.ready_at
    paid = await client.withdraw()
    assert paid.paid == 5 * USD and len(paid.halted) == 1


@pytest.mark.rule("6.49")
async def test_a_last_epoch_that_owes_everything_leaves_no_rest(tmp_path: Path) -> None:
    client = Client.of(posted(1_500_000, 500_000, CHARGED, 500_000), tmp_path)
    client.world.evm.now = halt(client.world) + HELD
    await client.withdraw()
    client.world.evm.travel(DELAY)
    state = await client.withdraw()
    assert (state.paid, state.halted) == (LEFT, ())
    named = [purpose.split("/")[0] for purpose in client.node.sent]
    assert named == ["announce", "release-halted", "finish"]


@pytest.mark.rule("6.49")
async def test_what_was_settled_job_by_job_has_no_share_of_the_rest(tmp_path: Path) -> None:
    client = Client.of(market(), tmp_path)
    world = client.world
    world.evm.travel(60)  # the keys of the job's evidence are older than the job
    send(world, world.contracts.settlement.settle_job(job(world, CLIENT, 7)), POSTER)
    client.world.evm.now = halt(client.world) + HELD
    state = await client.withdraw()
    assert state.record.amount == LEFT - 2 * PAY + SHARE
    client.world.evm.travel(DELAY)
    assert (await client.withdraw()).paid == LEFT - 2 * PAY + SHARE


@pytest.mark.rule("6.49")
async def test_the_rest_waits_for_the_last_epoch_and_grows_when_it_is_void(tmp_path: Path) -> None:
    world = market()
    challenges = world.contracts.challenges
    stated = world.statement(OWNERS[0], 600_000)
    send(world, challenges.demand_leaf(C, 1, stated))
    client = Client.of(world, tmp_path)
    world.evm.now = halt(world) + HELD
    [(_, found)] = (await client.flow().balances()).halted
    assert (found.rest, found.is_rest_free) == (SHARE, False)
    assert halt_lines(C, found, world.evm.now)[2].endswith("yours once its last epoch is final")
    send(world, challenges.close_demand(C, 1, OWNERS[0]))
    [(_, found)] = (await client.flow().balances()).halted
    assert (found.rest, found.is_rest_free) == (CHARGED, True)
    assert (await client.withdraw()).record.amount == DEPOSIT


@pytest.mark.rule("4.74")
async def test_another_program_that_takes_it_first_stops_nothing(tmp_path: Path) -> None:
    client = Client.of(market(), tmp_path)
    world, escrow = client.world, client.world.contracts.escrow
    world.evm.now = halt(world) + HELD
    firsts = {"release-halted": escrow.release_halted(C), "take-rest": escrow.take_rest(C)}

    def first(purpose: str) -> None:
        name = purpose.split("/")[1]
        if name in firsts:
            send(world, firsts.pop(name), CLIENT)

    client.node.meanwhile = first
    await client.withdraw()
    world.evm.travel(DELAY)
    assert (await client.withdraw()).paid == LEFT + SHARE and not firsts


async def test_a_clock_that_runs_ahead_only_costs_a_try(tmp_path: Path) -> None:
    client = Client.of(market(), tmp_path)
    at = halt(client.world)
    await client.withdraw()
    client.world.evm.now, client.clock_ahead = at + SETTLE - 1, 60
    state = await client.withdraw()
    assert state.paid is None and client.node.sent[-1].startswith("release-halted")
    client.world.evm.now += 1
    assert (await client.withdraw()).paid == LEFT


async def test_a_demand_that_is_open_changes_nothing_yet(tmp_path: Path) -> None:
    client = Client.of(market(), tmp_path)
    demand(client.world)
    found = await client.flow().balances()
    assert found.halted == () and found.coordinators[0].withdrawable == LEFT
