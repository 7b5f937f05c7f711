"""Requests that an account signs and anybody sends (PROTOCOL 2.8, 2.9), and the file between both.

The account needs no coin of the chain. For each request it pays the sender at most what it signed:
for those to Stakes in tokens, for those to Escrow out of its balance there. If its token has
permits (EIP-2612), the file has one for stake and fees; otherwise the account must have approved
them before.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from quorate_contracts.account.goals import Permit
from quorate_contracts.account.permit import permit_call, permit_terms
from quorate_contracts.calls import ask, simulate
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated import escrow, stakes
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages.ports import Signer
from quorate_protocol.messages.requests import (
    ChangePayoutRequest,
    CloseSlotRequest,
    CloseTabRequest,
    EscrowRequest,
    ExitRequest,
    LockRequest,
    OpenSlotsRequest,
    RegisterRequest,
    Request,
    StakesRequest,
    UnbondSlotRequest,
    WithdrawRequest,
)
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Amount, Nonce, Signature, UnixSeconds, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.files import PUBLIC_MODE, write_atomic
from quorate_runtime.keys.crypto import recover

if TYPE_CHECKING:
    from quorate_contracts.deploy import Deployment

FILE_BYTES_MAX = 256 << 10
REQUESTS_MAX = 80  # joins with 16 slots of each of a few classes, or takes back as many stakes

REQUEST_OF: dict[str, Callable[..., Request]] = {
    "register": RegisterRequest,
    "open_slots": OpenSlotsRequest,
    "close_slot": CloseSlotRequest,
    "unbond_slot": UnbondSlotRequest,
    "change_payout": ChangePayoutRequest,
    "exit": ExitRequest,
    "lock": LockRequest,
    "close": CloseTabRequest,
    "withdraw": WithdrawRequest,
}
"""What an account signs instead of sending a call of this function. Both have its arguments."""


class SignedRequest(Struct, frozen=True):
    """One request of an account, and its signature."""

    request: Request
    sig: Signature


class RequestFile(Struct, frozen=True):
    """What an account gives to a relayer. Nobody can change it, or send it elsewhere or twice."""

    chain_id: int
    stakes: Address
    account: Address
    requests: tuple[SignedRequest, ...]
    permit: Permit | None = None  # for the registry to pull stake, and for it to pay fees

    def bodies(self, deployment: "Deployment") -> list[Request]:
        """Returns the requests once everything that needs no chain is checked. Raises Refused:
        CHAIN for another market, BAD_SIGNATURE, MALFORMED for another file.
        """
        if (self.chain_id, self.stakes) != (deployment.chain_id, deployment.stakes):
            told = f"on chain {self.chain_id}, contract 0x{self.stakes.hex()}"
            raise Refused(Code.CHAIN, f"the requests are for another market ({told})")
        if not 0 < len(self.requests) <= REQUESTS_MAX:
            raise Refused(Code.MALFORMED, f"requests: {len(self.requests)}, not 1–{REQUESTS_MAX}")
        found = []
        for number, each in enumerate(self.requests):
            body = each.request
            signer = recover(digest(deployment.domain(), body), each.sig)
            if body.account != self.account or signer != self.account:
                told = f"request {number + 1} is not signed by 0x{self.account.hex()}"
                raise Refused(Code.BAD_SIGNATURE, told)
            found.append(body)
        return found


async def sign_requests(
    client: ChainClient,
    contracts: Contracts,
    signer: Signer,
    calls: Sequence[Call],
    deadline: UnixSeconds,
    max_fee: Amount,
) -> RequestFile:
    """Signs a request instead of each call, in their order, from the account's next nonces on.

    A permit stands for the approvals. Raises Refused if the token has none and too little is
    approved.
    """
    deployment, account = contracts.deployment, signer.address
    nonces = await _nonces(client, contracts, account)
    signed, pulled = [], 0
    for call in calls:
        if call.to == deployment.token:
            amount = call.arguments[1]
            assert isinstance(amount, int), "an approval"
            pulled += amount
            continue
        is_money = call.to == deployment.escrow
        terms = nonces[is_money], deadline, max_fee
        body = REQUEST_OF[call.function](account, *call.arguments, *terms)
        nonces[is_money] = Nonce(nonces[is_money] + 1)
        pulled += 0 if is_money else max_fee
        sig = signer.sign(digest(deployment.domain(), body))
        signed.append(SignedRequest(body, sig))
    permit = await _permit(client, contracts, signer, Amount(pulled), deadline)
    return RequestFile(deployment.chain_id, deployment.stakes, account, tuple(signed), permit)


async def _nonces(client: ChainClient, contracts: Contracts, account: Address) -> dict[bool, Nonce]:
    found = {}
    for is_money, contract in ((False, contracts.stakes), (True, contracts.escrow)):
        found[is_money] = await ask(client, contract.request_nonce(account))
    return found


async def _permit(
    client: ChainClient, contracts: Contracts, signer: Signer, wanted: Amount, until: UnixSeconds
) -> Permit | None:
    deployment, account = contracts.deployment, signer.address
    allowance = contracts.token.allowance(account, deployment.stakes)
    if wanted == 0 or await ask(client, allowance) >= wanted:
        return None
    terms = await permit_terms(client, deployment.token, deployment.chain_id, account)
    if terms is None:
        raise Refused(
            Code.CHAIN,
            f"the token has no permits: first approve {usd(wanted)} USD for "
            f"0x{deployment.stakes.hex()} from 0x{account.hex()}, which needs gas once",
        )
    return Permit(wanted, until, terms.sign(deployment.stakes, wanted, until, signer))


async def calls_to_relay(
    client: ChainClient, contracts: Contracts, file: RequestFile, fee: Amount | None, now: int
) -> list[Call]:
    """Returns the transactions to send, in order. Those that the chain has taken are left out.

    Each takes `fee`, or as much as was signed. Raises Refused for requests of another market, that
    are too late, out of order, or not paid enough for.
    """
    bodies = file.bodies(contracts.deployment)
    nonces = await _nonces(client, contracts, file.account)
    calls: list[Call] = []
    for body, signed in zip(bodies, file.requests, strict=True):
        is_money = isinstance(body, EscrowRequest)
        nonce = nonces[is_money]
        if body.nonce < nonce:
            continue
        if body.nonce > nonce:
            told = f"the account's next request is number {nonce}, and the file has {body.nonce}"
            raise Refused(Code.WRONG_PHASE, f"{told}: ask for a new file")
        if body.deadline < now:
            raise Refused(Code.WRONG_PHASE, "the requests are too old: ask for a new file")
        if fee is not None and fee > body.max_fee:
            told = f"--fee {usd(fee)}: the account pays at most {usd(body.max_fee)} USD for each"
            raise Refused(Code.BAD_AMOUNT, told)
        calls.append(
            relayed_call(contracts, body, body.max_fee if fee is None else fee, signed.sig)
        )
        nonces[is_money] = Nonce(nonce + 1)
    permit = await _permit_call(client, contracts, file) if calls else None
    return calls if permit is None else [permit, *calls]


def relayed_call(contracts: Contracts, body: Request, fee: Amount, sig: Signature) -> Call:
    if isinstance(body, EscrowRequest):
        return _escrow_call(contracts.escrow, body, fee, sig)
    return _stakes_call(contracts.stakes, body, fee, sig)


def _stakes_call(to: stakes.Stakes, body: StakesRequest, fee: Amount, sig: Signature) -> Call:
    who, terms = body.account, stakes.RequestTerms(body.nonce, body.deadline, body.max_fee)
    match body:
        case RegisterRequest():
            keys = (body.operator_key, body.payout, body.peer_key, body.box_key, body.network)
            return to.register_for(stakes.Registration(who, *keys), terms, fee, sig)
        case OpenSlotsRequest():
            return to.open_slots_for(who, body.pool, body.count, terms, fee, sig)
        case CloseSlotRequest():
            return to.close_slot_for(who, body.pool, body.place, terms, fee, sig)
        case UnbondSlotRequest():
            return to.unbond_slot_for(who, body.pool, body.place, terms, fee, sig)
        case ChangePayoutRequest():
            return to.change_payout_for(who, body.payout, terms, fee, sig)
        case ExitRequest():
            return to.exit_for(who, terms, fee, sig)


def _escrow_call(to: escrow.Escrow, body: EscrowRequest, fee: Amount, sig: Signature) -> Call:
    who, terms = body.account, escrow.RequestTerms(body.nonce, body.deadline, body.max_fee)
    match body:
        case LockRequest():
            return to.lock_for(who, body.payee, body.amount, terms, fee, sig)
        case CloseTabRequest():
            return to.close_for(who, body.payee, terms, fee, sig)
        case WithdrawRequest():
            return to.withdraw_for(who, body.amount, terms, fee, sig)


async def _permit_call(client: ChainClient, contracts: Contracts, file: RequestFile) -> Call | None:
    """The call that gives the token the file's permit; None if it has none, or was given it."""
    if file.permit is None:
        return None
    terms = (file.account, contracts.stakes.address, file.permit.amount, file.permit.deadline)
    call = permit_call(contracts.token.address, *terms, file.permit.sig)
    try:
        await simulate(client, call)
    except Refused:
        return None  # if it was never given, the requests themselves are refused
    return call


def encode(file: RequestFile) -> bytes:
    return canonical.encode(file)


def write_file(path: Path, file: RequestFile) -> None:
    """Writes the file for a relayer. Raises Refused if the folder does not take it."""
    try:
        write_atomic(path, encode(file), PUBLIC_MODE)
    except OSError as error:
        raise Refused(Code.MALFORMED, f"--out {path}: {error.strerror}") from error


def decode(data: bytes) -> RequestFile:
    """Returns the file of its JSON. Raises Refused(MALFORMED), which names the wrong field."""
    if len(data) > FILE_BYTES_MAX:
        raise Refused(Code.MALFORMED, f"more than {FILE_BYTES_MAX} bytes")
    return canonical.decode(RequestFile, data)
