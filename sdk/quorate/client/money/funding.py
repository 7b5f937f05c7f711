"""Puts a client's money into its tab for a coordinator, or into its own balance.

Two transactions of the client's account serve many jobs: an approval and the deposit. With a token
that has permits (EIP-2612) there is one.
"""

import shlex

from quorate.base.errors import translated
from quorate.client.base.profile import Profile
from quorate.client.money.chain_access import ChainAccess, one_at_a_time, open_chain
from quorate.client.money.moments import moment
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_contracts.account.delivery import LONG_SECONDS
from quorate_contracts.account.goals import Permit, deposit
from quorate_contracts.account.permit import permit_terms
from quorate_contracts.calls import ask
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.messages.ports import Clock, Signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, UnixSeconds, usd
from quorate_runtime.chain.sender import Outgoing

PERMIT_SECONDS = 3_600  # a permit that no block took by then is worthless
GAS_MIN = 300_000  # of all transactions together, with some reserve


async def fund(
    profile: Profile,
    pins: CoordinatorIdentity,
    chain_url: str,
    amount: Amount,
    purpose: str,
    clock: Clock,
    *,
    into_balance: bool = False,
    mint: bool = False,
) -> int:
    """Deposits into the tab for the coordinator whose identity is `pins`, or with `into_balance`
    into the account's balance. Returns the gas used.

    A `purpose` that was used before is only waited for, never sent twice. For a new purpose the
    account's coins and tokens are read first: if they are too few, nothing is signed.

    Raises RefusedError with the contract's reason (such as too few tokens), and UnavailableError if
    the chain does not answer in time. With `mint`, the devnet's token first makes the amount.
    """
    payee = ZERO_ADDRESS if into_balance else pins.coordinator
    with one_at_a_time(profile.home):
        async with open_chain(pins, chain_url) as chain:
            with translated():
                calls = await _reopening(chain, profile.account.address, payee)
                calls += await _deposit_calls(chain, profile.account, payee, amount, clock)
            if mint:
                calls.insert(0, chain.token.mint(profile.account.address, amount))
            sender = chain.sender(profile.account, profile.home, clock)
            outgoing = [
                Outgoing(f"{purpose}/{call.function}", call.to, call.data, gas=call.gas)
                for call in calls
            ]
            needed = 0 if mint else amount
            with translated():
                if not await sender.known(outgoing[0].purpose):  # else it may be on its way
                    lack = await _lack(chain, profile, needed)
                    if lack:
                        raise Refused(Code.CHAIN, lack)
                try:
                    receipts = await sender.send_in_order(outgoing, deadline_seconds=LONG_SECONDS)
                except Refused as refused:
                    lack = await _lack(chain, profile, needed)
                    raise (Refused(refused.code, lack) if lack else refused) from refused
    return sum(receipt.gas_used for receipt in receipts)


async def _reopening(chain: ChainAccess, account: Address, payee: Address) -> list[Call]:
    """What must be sent first if the tab was closed. Raises Refused while it still closes."""
    tab = await ask(chain.client, chain.escrow.tab(account, payee))
    if not tab.closes_at:
        return []
    if (await chain.client.head()).time <= tab.closes_at:
        raise Refused(
            Code.CHAIN,
            f"your tab for this coordinator closes and takes no money until "
            f"{moment(tab.closes_at)}: deposit after that",
        )
    return [chain.escrow.finish(account, payee)]


async def _deposit_calls(
    chain: ChainAccess, account: Signer, payee: Address, amount: Amount, clock: Clock
) -> list[Call]:
    """The deposit alone if the token takes a permit, else the approval and the deposit."""
    pins, permit = chain.identity, None
    terms = await permit_terms(chain.client, pins.token, pins.chain_id, account.address)
    if terms is not None:
        deadline = UnixSeconds(int(clock.now()) + PERMIT_SECONDS)
        signed = terms.sign(pins.escrow, amount, deadline, account)
        permit = Permit(amount, deadline, signed)
    return deposit(chain.token, chain.escrow, amount, payee, permit=permit)


async def _lack(chain: ChainAccess, profile: Profile, needed: int) -> str:
    """Returns what the account has too little of, and the remedy; "" when it has enough gas and
    tokens.
    """
    account, currency = profile.account.address, chain.currency
    coins = await chain.client.balance(account)
    held = await ask(chain.client, chain.token.balance_of(account))
    tokens, wei = max(0, needed - held), max(0, await chain.client.gas_cost(GAS_MIN) - coins)
    if not tokens and not wei:
        return ""
    lacks = [f"{currency.coins(coins)} and cannot pay for gas"] if wei else []
    lacks += [f"{usd(held)} of the {usd(needed)} USD to deposit"] if tokens else []
    remedy = currency.send(account, tokens, wei)
    faucet = (
        f"; on a devnet: quorate devnet fund {shlex.quote(str(profile.home))}"
        f"; after `chain deploy`: quorate chain fund {shlex.quote(str(profile.home))} --key KEYFILE"
        if currency.is_devnet
        else ""
    )
    return f"the account has {', and '.join(lacks)}: {remedy}{faucet}"
