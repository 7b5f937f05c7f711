"""The money of an open Market's client: its balance, and its way back to the wallet."""

from quorate.client.base.session import ClientSession
from quorate.client.money.balances import Balances, read_balances
from quorate.client.money.chain_access import one_at_a_time, open_chain
from quorate.client.money.taking_out import receiver_of, state_lines, take_out
from quorate.client.money.withdrawal import WithdrawalState
from quorate.job.quantities import Money, parse_amount


async def balance(session: ClientSession, chain_url: str) -> Balances:
    """Returns the client's money. Raises UnavailableError if the chain does not answer."""
    async with open_chain(session.identity, chain_url) as chain:
        lead = session.profile.lead
        return await read_balances(chain, session.client, session.ledger, lead)


async def withdraw(
    session: ClientSession, amount: Money | None, to: str, is_waiting: bool
) -> WithdrawalState:
    """Begins or continues the client's withdrawal.

    Raises UsageError for a wrong amount or account, and the errors of `take_out`.
    """
    wanted = None if amount is None else parse_amount(amount, "amount")
    receiver = receiver_of(to) if to else None

    async def told(state: WithdrawalState) -> None:
        for line in state_lines(state, ""):
            session.notice(line)

    with one_at_a_time(session.profile.home):
        return await take_out(
            session.profile,
            session.ledger,
            session.clock,
            session.notice,
            wanted,
            receiver,
            give_back=session.api.give_back,
            told=told if is_waiting else None,
        )
