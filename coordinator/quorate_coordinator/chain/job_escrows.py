"""Orders with an escrow of their own, as `Jobs` has them."""

from collections import Counter
from dataclasses import dataclass

from quorate_contracts.calls import view
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.jobs import Job, Shown
from quorate_contracts.log_search import newest_logs, topic_of
from quorate_coordinator.chain.queries import RETRY_SECONDS
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import Limits
from quorate_protocol.messages.signed import Order
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules import orders
from quorate_protocol.units import Address, BlockNumber, Comparator, Hash32, UnixSeconds, usd
from quorate_runtime.chain.client import BlockId, ChainClient

AGREED_MIN = 2
WAIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ShownExecutions:
    """Whose executions are shown of an unpaid order, ascending, and when it can be paid."""

    providers: tuple[Address, ...]
    ready_at: UnixSeconds


async def must_be_funded(
    client: ChainClient, contracts: Contracts, order: Order, limits: Limits
) -> None:
    """Raises Unavailable until final blocks show its budget in `Jobs`, Refused if it does not
    fit.
    """
    head = (await client.head()).number
    at = BlockNumber(max(0, head - limits.chain_depth + 1))
    job_id = digest(contracts.deployment.domain(), order)
    job = await _job(client, contracts, order.client, job_id, at)
    if not job.budget:
        raise Unavailable("order: its escrow is not in a final block yet", WAIT_SECONDS)
    check_funded(order, job, limits)


async def has_balance(client: ChainClient, contracts: Contracts, account: Address) -> bool:
    return await view(client, contracts.escrow.balance_of(account)) > 0


def check_funded(order: Order, job: Job, limits: Limits) -> None:
    if order.comparator is not Comparator.EXACT:
        raise Refused(Code.UNSUPPORTED, "order: an escrow of its own needs the comparator exact")
    if job.is_over or job.count:
        raise Refused(Code.REPLAYED, "order: its escrow is used already")
    if job.budget < order.budget:
        raise Refused(
            Code.INSUFFICIENT_FUNDS,
            f"order: its escrow has {usd(job.budget)} of {usd(order.budget)} USD",
        )
    needed = orders.escrow_until(order, limits)
    if job.until < needed:
        raise Refused(Code.EXPIRED, f"order: its escrow ends {needed - job.until} s too early")


async def is_releasable(client: ChainClient, contracts: Contracts, order: Order) -> bool:
    job_id = digest(contracts.deployment.domain(), order)
    job = await _job(client, contracts, order.client, job_id)
    ends_at = (await client.head()).time + contracts.deployment.constants().evidence_window
    return job.until > ends_at and not job.is_over and not job.count


async def shown_of(
    client: ChainClient, contracts: Contracts, order: Order
) -> ShownExecutions | None:
    """None if the order is paid, or nobody can be paid any more. Raises Unavailable while
    executions may still be shown and none is.
    """
    job_id = digest(contracts.deployment.domain(), order)
    job = await _job(client, contracts, order.client, job_id)
    now = (await client.head()).time
    if not job.budget or job.is_over or (now > job.until and job.count < AGREED_MIN):
        return None  # its client takes back what no account can be paid
    if job.count < AGREED_MIN:
        wait = float(contracts.deployment.constants().evidence_window)
        raise Unavailable("fewer than two executions are shown", wait)
    shown = await _shown(client, contracts, order.client, job_id, job.count)
    is_agreed = max(Counter(shown.values()).values()) >= AGREED_MIN
    window = contracts.deployment.constants().evidence_window
    ready_at = min(job.until, job.last_shown + window) if is_agreed else job.until
    return ShownExecutions(tuple(sorted(shown)), UnixSeconds(ready_at))


async def _shown(
    client: ChainClient, contracts: Contracts, account: Address, job_id: Hash32, count: int
) -> dict[Address, Hash32]:
    found: dict[Address, Hash32] = {}
    topics = (topic_of("Jobs", Shown), Hash32(bytes(12) + account), job_id)
    place, head = contracts.jobs.address, (await client.head()).number
    async for _, logs in newest_logs(client, contracts, place, topics, BlockNumber(0), head):
        for log in logs:
            event = contracts.event(log.address, log.topics, log.data)
            if isinstance(event, Shown):
                found[event.provider] = event.group
        if len(found) == count:
            return found
    raise Unavailable("the chain node does not give all that was shown", RETRY_SECONDS)


async def _job(
    client: ChainClient,
    contracts: Contracts,
    account: Address,
    job_id: Hash32,
    block: BlockId = "latest",
) -> Job:
    return await view(client, contracts.jobs.job(account, job_id), block)
