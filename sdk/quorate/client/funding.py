"""Makes a client's money available for orders: approve, deposit, allocate. Three transactions of
the client's account serve many jobs.
"""

import shlex

from quorate.client.profile import Profile
from quorate.errors import translated
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_contracts.bindings.escrow import Escrow
from quorate_contracts.bindings.token import Token
from quorate_protocol.ports import Clock
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.rpc import Rpc
from quorate_runtime.chain.sender import Outgoing, Sender
from quorate_runtime.http.client_sessions import plain_session

DEADLINE_SECONDS = 300.0
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
    calls = [("approve", token.approve(pins.escrow, amount)), ("deposit", escrow.deposit(amount))]
    calls.append(("allocate", escrow.allocate(pins.coordinator, amount)))
    if mint:
        calls.insert(0, ("mint", token.mint(profile.account.address, amount)))
    async with plain_session() as session:
        client = ChainClient(Rpc(chain_url, session))
        with translated():
            found = await client.chain_id()
            if found != pins.chain_id:  # signed for another chain, it could be sent there
                detail = (
                    f"the chain node {chain_url} serves chain {found}, this market is on "
                    f"chain {pins.chain_id}: nothing was signed"
                )
                raise Refused(Code.CHAIN, detail)
        path = profile.home / "transactions.sqlite"
        sender = Sender(client, profile.account, path, clock, chain_id=pins.chain_id)
        outgoing = [
            Outgoing(f"{purpose}/{name}", call.to, call.data, gas=call.gas) for name, call in calls
        ]
        needed = 0 if mint else amount
        with translated():
            if not await sender.known(outgoing[0].purpose):  # else it may be on its way
                lack = await _lack(client, token, profile, amount, needed)
                if lack:
                    raise Refused(Code.CHAIN, lack)
            try:
                receipts = await sender.send_in_order(outgoing, deadline_seconds=DEADLINE_SECONDS)
            except Refused as refused:
                lack = await _lack(client, token, profile, amount, needed)
                raise (Refused(refused.code, lack) if lack else refused) from refused
    return sum(receipt.gas_used for receipt in receipts)


async def _lack(
    client: ChainClient, token: Token, profile: Profile, amount: Amount, needed: int
) -> str:
    """Returns what the account has too little of, and the remedy; "" when it has enough gas and
    tokens.
    """
    account = f"0x{profile.account.address.hex()}"
    faucet = f"on a devnet: quorate devnet fund {shlex.quote(str(profile.home))}"
    if await client.balance(profile.account.address) < GAS_MIN * (await client.fees()).base_fee_wei:
        return f"{account} cannot pay for gas: send coins of the chain to it; {faucet}"
    asked = token.balance_of(profile.account.address)
    held = asked.decode(await client.call(asked.to, asked.data))
    if held < needed:
        return (
            f"{account} holds {usd(held)} USD and {usd(amount)} are to be deposited: send "
            f"stablecoin to it, or deposit less; {faucet}"
        )
    return ""
