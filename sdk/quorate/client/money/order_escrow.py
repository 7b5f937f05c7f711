"""An order's own escrow: its client funds it before it sends the order, and takes back the budget
if no two owners agree (PROTOCOL §6).

The client's ledger has the order, with its last second, before the first transaction. So after a
crash nothing is forgotten that may be on chain.
"""

from quorate.base.errors import RefusedError, UsageError, translated
from quorate.client.base.client_ledger import Ledger, OrderRecord
from quorate.client.base.profile import Profile
from quorate.client.money.chain_access import ChainAccess, find_chain, one_at_a_time, open_chain
from quorate.client.money.moments import moment
from quorate.job.quantities import format_amount
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_contracts.account.delivery import LONG_SECONDS, send_again, sent_before
from quorate_contracts.artifact import artifact
from quorate_contracts.calls import ask
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import MEANINGS, Code
from quorate_protocol.units import Address, Amount, Hash32, usd
from quorate_runtime.chain.sender import Sender


async def check_balance(
    identity: CoordinatorIdentity, chain_url: str, account: Address, budget: Amount
) -> None:
    """Raises RefusedError if the account's balance does not cover an order's budget."""
    async with open_chain(identity, chain_url) as chain:
        with translated():
            held = await ask(chain.client, chain.escrow.balance_of(account))
    if held < budget:
        raise RefusedError(
            Code.INSUFFICIENT_FUNDS.value,
            "The balance does not cover it.",
            f"the order's own escrow takes its budget of {format_amount(budget)} from your "
            f"balance, which has {format_amount(held)}",
            f"`quorate deposit {usd(budget - held)} --into-balance`",
        )


async def fund_order(
    profile: Profile,
    identity: CoordinatorIdentity,
    chain_url: str,
    clock: Clock,
    entry: OrderRecord,
) -> None:
    """Moves the budget of a recorded order from the balance into the order's escrow, once.

    Raises RefusedError with the contract's reason, UnavailableError if the chain does not answer.
    """
    with one_at_a_time(profile.home):
        async with open_chain(identity, chain_url) as chain:
            sender = chain.sender(profile.account, profile.home, clock)
            call = chain.jobs.fund(entry.job_id, entry.order.budget, entry.funded_until)
            with translated():
                await send_again(sender, _funding(entry.job_id), call, LONG_SECONDS)


async def reclaim(
    profile: Profile, ledger: Ledger, clock: Clock, name: str, chain_url: str = ""
) -> str:
    """Takes back the budget of an order whose escrow nobody earned. Returns what happened, in one
    sentence. Needs no coordinator.

    Raises RefusedError before the order's last second, UsageError if no funded order matches.
    """
    entry = _find(ledger, name)
    identity, url = await find_chain(profile.home, profile.coordinator_url, chain_url)
    with one_at_a_time(profile.home):
        async with open_chain(identity, url) as chain:
            sender = chain.sender(profile.account, profile.home, clock)
            with translated():
                return await _reclaimed(chain, sender, ledger, profile.account.address, entry)


async def _reclaimed(
    chain: ChainAccess, sender: Sender, ledger: Ledger, account: Address, entry: OrderRecord
) -> str:
    run = f"run 0x{entry.job_id.hex()[:12]}"
    job = await ask(chain.client, chain.jobs.job(account, entry.job_id))
    until = job.until or entry.funded_until
    if job.is_over:
        ledger.returned(entry.job_id)
        return f"{run}: its escrow was paid or taken back already"
    if (await chain.client.head()).time <= until:
        code = Code.TOO_EARLY
        held = format_amount(job.budget) if job.budget else "nothing yet"
        raise RefusedError(
            code.value,
            MEANINGS[code].sentence,
            f"{run}: its escrow holds {held}, and executions can be shown until {moment(until)}",
            f"`quorate reclaim {entry.job_id.hex()[:12]}` after that",
        )
    if job.budget:
        call = await _ending(chain, sender, entry)
        await send_again(sender, f"reclaim/{entry.job_id.hex()}", call, LONG_SECONDS)
    ledger.returned(entry.job_id)
    if not job.budget:
        return f"{run}: its escrow was never funded"
    return f"{run}: what its escrow did not pay is in your balance"


async def _ending(chain: ChainAccess, sender: Sender, entry: OrderRecord) -> Call:
    """With fewer than two executions the budget comes back; with more, the contract decides."""
    jobs, client = chain.jobs, entry.order.client
    job = await ask(chain.client, jobs.job(client, entry.job_id))
    if job.count < 2:
        return jobs.reclaim(client, entry.job_id)
    funding = await sent_before(sender, _funding(entry.job_id))
    assert funding is not None, "this profile funded it"
    kinds = artifact("Jobs").events
    shown = next(topic for topic, kind in kinds.items() if kind.name == "Shown")
    logs = await chain.client.logs(
        funding.block,
        (await chain.client.head()).number,
        (jobs.address,),
        (shown, Hash32(bytes(12) + client), entry.job_id),
    )
    return jobs.pay(entry.order, sorted({Address(log.topics[3][12:]) for log in logs}))


def _find(ledger: Ledger, name: str) -> OrderRecord:
    digits = name.removeprefix("0x").lower()
    found = [
        each
        for each in ledger.funded_orders()
        if each.name == name or (len(digits) >= 4 and each.job_id.hex().startswith(digits))
    ]
    if len(found) != 1:
        raise UsageError(
            f"run: {name[:80]!r} matches {'no order' if not found else 'several orders'} with an "
            "escrow of its own; `quorate balance` lists them"
        )
    return found[0]


def _funding(job_id: Hash32) -> str:
    return f"fund/{job_id.hex()}"
