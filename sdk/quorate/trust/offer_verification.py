"""Checks offers from a coordinator's book, so that it need not be believed.

`check_offer` is pure: it checks form and expiry, and recovers the key that signed the document. Of
a changed document it recovers another key. So only the chain can say that the provider signed it
(`check_on_chain`).
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from quorate.base.errors import translated
from quorate.trust.coordinator_identity import CoordinatorIdentity
from quorate_protocol.messages.offer import validate
from quorate_protocol.messages.views import OfferView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, UnixSeconds

if TYPE_CHECKING:
    from quorate.trust.attestation_verification import CheckedSlot
    from quorate_contracts.generated.contract_calls import Query
    from quorate_contracts.generated.stakes import Stakes
    from quorate_runtime.chain.client import ChainClient

T = TypeVar("T")

CHAIN_CALLS_PARALLEL = 8


@dataclass(frozen=True, slots=True)
class CheckedOffer:
    """A row of the book. `problem` says in one sentence why it must not be believed; "" if nothing
    was found. `signer` is the key that signed it, or None. `is_chain_checked`: the chain was asked
    whether this key is the provider's. `slots` is what was found about each slot's attestation, if
    it was checked.
    """

    view: OfferView
    problem: str
    signer: Address | None
    is_chain_checked: bool = False
    slots: "tuple[CheckedSlot, ...]" = ()


def check_offer(view: OfferView, identity: CoordinatorIdentity, now: UnixSeconds) -> CheckedOffer:
    """Checks one row without asking anybody."""
    from quorate_runtime.keys.crypto import recover

    try:
        key = validate(view.envelope(), identity.domain, recover, now, identity.constants.offer_ttl)
    except Refused as refused:
        return CheckedOffer(view, refused.detail or str(refused), None)
    return CheckedOffer(view, "", key)


async def check_on_chain(
    rows: Iterable[CheckedOffer], identity: CoordinatorIdentity, chain_url: str
) -> tuple[CheckedOffer, ...]:
    """Asks the chain whether each row was signed by a valid operator key of its provider, at the
    time of the newest block.

    UnavailableError if the chain node does not answer; RefusedError if it serves another chain.
    """
    from quorate_contracts.calls import ask
    from quorate_contracts.generated.stakes import Stakes
    from quorate_runtime.chain.client import ChainClient
    from quorate_runtime.chain.rpc import Rpc
    from quorate_runtime.http.client_sessions import plain_session

    stakes, turns = Stakes(identity.stakes), asyncio.Semaphore(CHAIN_CALLS_PARALLEL)
    async with plain_session() as session:
        client = ChainClient(Rpc(chain_url, session))

        async def check(row: CheckedOffer) -> CheckedOffer:
            if row.signer is None:
                return row
            owner = row.view.offer.provider
            async with turns:
                is_valid = await ask(client, stakes.key_valid(owner, row.signer, newest))
            problem = "" if is_valid else "no valid operator key of the provider signed it"
            return CheckedOffer(row.view, problem, row.signer, is_chain_checked=True)

        with translated():
            if await client.chain_id() != identity.chain_id:
                raise Refused(
                    Code.CHAIN, f"{chain_url} serves another chain than {identity.chain_id}"
                )
            newest = UnixSeconds((await client.head()).time)
            return tuple(await asyncio.gather(*[check(row) for row in rows]))


@dataclass(frozen=True, slots=True)
class ChainKeys:
    """Asks the chain whose keys signed. UnavailableError if the chain node does not answer."""

    client: "ChainClient"
    stakes: "Stakes"

    async def is_key_at(self, account: Address, key: Address, at: UnixSeconds) -> bool:
        return bool(await self._ask(self.stakes.key_valid(account, key, at)))

    async def is_coordinator(self, account: Address) -> bool:
        return bool(await self._ask(self.stakes.bond_of(account)))

    async def _ask(self, query: "Query[T]") -> "T":
        from quorate_contracts.calls import ask

        with translated():
            return await ask(self.client, query)


@asynccontextmanager
async def chain_keys(stakes: Address, chain_url: str) -> AsyncIterator[ChainKeys]:
    from quorate_contracts.generated.stakes import Stakes
    from quorate_runtime.chain.client import ChainClient
    from quorate_runtime.chain.rpc import Rpc
    from quorate_runtime.http.client_sessions import plain_session

    async with plain_session() as session:
        yield ChainKeys(ChainClient(Rpc(chain_url, session)), Stakes(stakes))
