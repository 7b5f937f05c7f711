"""Putting money where orders can use it: approve, deposit, allocate. Three transactions of the client's account, once for many jobs."""


from quorate.errors import translated
from quorate.pins import Pins
from quorate.profile import Profile
from quorate_contracts.bindings.escrow import Escrow
from quorate_contracts.bindings.token import Token
from quorate_protocol.ports import Clock
from quorate_protocol.units import Amount
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.rpc import Rpc
from quorate_runtime.chain.sender import Outgoing, Sender
from quorate_runtime.sessions import plain_session

DEADLINE_SECONDS = 300.0


async def fund(profile: Profile, pins: Pins, chain_url: str, amount: Amount, purpose: str, clock: Clock, *, mint: bool = False) -> int:
    """Deposits and allocates to the pinned coordinator; the gas used. The same `purpose` again is only waited for, never done twice.

    RefusedError with the contract's reason (too few tokens), UnavailableError when the chain does not answer in time. `mint` asks
    a devnet's token for the amount first.
    """
    token, escrow = Token(pins.token), Escrow(pins.escrow)
    calls = [("approve", token.approve(pins.escrow, amount)), ("deposit", escrow.deposit(amount))]
    calls.append(("allocate", escrow.allocate(pins.coordinator, amount)))
    if mint:
        calls.insert(0, ("mint", token.mint(profile.account.address, amount)))
    async with plain_session() as session:
        client = ChainClient(Rpc(chain_url, session))
        sender = Sender(client, profile.account, profile.home / "transactions.sqlite", clock)
        outgoing = [Outgoing(f"{purpose}/{name}", call.to, call.data, gas=call.gas) for name, call in calls]
        with translated():
            receipts = await sender.send_in_order(outgoing, deadline_seconds=DEADLINE_SECONDS)
    return sum(receipt.gas_used for receipt in receipts)
