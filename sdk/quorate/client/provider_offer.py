"""The signed offer of a rental's provider: it has the keys for SSH and for secrets."""

from quorate.base.errors import EvidenceError, UnavailableError
from quorate.client.base.session import ClientSession
from quorate.client.money.chain_url import stored_chain_url
from quorate.trust.offer_verification import check_offer, check_on_chain
from quorate_protocol.messages.offer import Offer
from quorate_protocol.units import Address, UnixSeconds


async def offer_of(session: ClientSession, provider: Address) -> Offer:
    """Raises EvidenceError unless the chain says that the provider signed it, UnavailableError if
    the coordinator shows none.
    """
    now, identity = UnixSeconds(int(session.clock.now())), session.identity
    found = [view for view in await session.api.offers() if view.offer.provider == provider]
    rows = [check_offer(view, identity, now) for view in found]
    name = f"0x{provider.hex()[:12]}"
    if not rows:
        raise UnavailableError(f"the coordinator shows no offer of provider {name}; try again soon")
    if not rows[0].problem:
        chain_url = stored_chain_url(session.profile.home)
        rows = list(await check_on_chain(rows, identity, chain_url))
    if rows[0].problem:
        raise EvidenceError(
            f"the offer of provider {name}, which has its keys, does not hold: {rows[0].problem}; "
            "stop this rental"
        )
    return rows[0].view.offer
