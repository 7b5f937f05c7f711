"""Makes a client's money available for orders: approve, deposit, allocate. Three transactions of
the client's account serve many jobs. With a token that has permits (EIP-2612) there are two.
"""

import shlex

from quorate.client.money.chain_access import ChainAccess, one_at_a_time, open_chain
from quorate.client.profile import Profile
from quorate.errors import translated
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_contracts.bindings.calls import Call
from quorate_contracts.bindings.escrow import Escrow
from quorate_contracts.bindings.token import Token
from quorate_contracts.permit import permit_terms
from quorate_protocol.ports import Clock, Signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, UnixSeconds, usd
from quorate_runtime.chain.fee_bids import first_bid
from quorate_runtime.chain.sender import Outgoing

DEADLINE_SECONDS = 300.0
PERMIT_SECONDS = 3_600  # a permit that no block took by then is worthless
GAS_MIN = 300_000  # of the three transactions together, with some reserve


async def fund(
    profile: Profile,
    pins: CoordinatorIdentity,
    chain_url: str,
    amount: Amount,
    purpose: str,
    clock: Clock,
    *,
    mint: bool = False,
) -> int:
    """Deposits, and allocates to the coordinator whose identity is `pins`. Returns the gas used. A
    `purpose` that was used before is only waited for, never sent twice. For a new purpose the
    account's coins and tokens are read first: if they are too few, nothing is signed.

    Raises RefusedError with the contract's reason (such as too few tokens), and UnavailableError if
    the chain does not answer in time. With `mint`, the devnet's token first makes the amount.
    """
    token, escrow = Token(pins.token), Escrow(pins.escrow)
    with one_at_a_time(profile.home):
        async with open_chain(pins, chain_url) as chain:
            with translated():
                calls = await _deposit_calls(chain, profile.account, amount, clock)
            calls.append(("allocate", escrow.allocate(pins.coordinator, amount)))
            if mint:
                calls.insert(0, ("mint", token.mint(profile.account.address, amount)))
            sender = chain.sender(profile.account, profile.home, clock)
            outgoing = [
                Outgoing(f"{purpose}/{name}", call.to, call.data, gas=call.gas)
                for name, call in calls
            ]
            needed = 0 if mint else amount
            with translated():
                if not await sender.known(outgoing[0].purpose):  # else it may be on its way
                    lack = await _lack(chain, profile, needed)
                    if lack:
                        raise Refused(Code.CHAIN, lack)
                try:
                    receipts = await sender.send_in_order(
                        outgoing, deadline_seconds=DEADLINE_SECONDS
                    )
                except Refused as refused:
                    lack = await _lack(chain, profile, needed)
                    raise (Refused(refused.code, lack) if lack else refused) from refused
    return sum(receipt.gas_used for receipt in receipts)


async def _deposit_calls(
    chain: ChainAccess, account: Signer, amount: Amount, clock: Clock
) -> list[tuple[str, Call]]:
    """The deposit alone if the token takes a permit, else the approval and the deposit."""
    pins, escrow = chain.identity, chain.escrow
    terms = await permit_terms(chain.client, pins.token, pins.chain_id, account.address)
    if terms is None:
        approve = chain.token.approve(pins.escrow, amount)
        return [("approve", approve), ("deposit", escrow.deposit(amount))]
    deadline = UnixSeconds(int(clock.now()) + PERMIT_SECONDS)
    signature = terms.sign(pins.escrow, amount, deadline, account)
    return [("deposit", escrow.deposit_with_permit(amount, deadline, signature))]


async def _lack(chain: ChainAccess, profile: Profile, needed: int) -> str:
    """Returns what the account has too little of, and the remedy; "" when it has enough gas and
    tokens.
    """
    account, currency = profile.account.address, chain.currency
    coins = await chain.client.balance(account)
    gas_price = first_bid(await chain.client.fees(), chain.client.fee_cap_wei).fee_max
    held = await chain.ask(chain.token.balance_of(account))
    tokens, wei = max(0, needed - held), max(0, GAS_MIN * gas_price - coins)
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
