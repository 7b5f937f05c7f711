"""Announces on chain where peers reach the coordinator, whenever that has changed."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from quorate_contracts.announced_coordinators import ADDRESSES_MAX, newest_announcement
from quorate_contracts.deploy import Contracts
from quorate_contracts.encodings import ADDRESSES_BYTES_MAX
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Hash32
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender

SEND_SECONDS = 60.0
LOOK_SECONDS = 15.0  # between looks at the own addresses
RETRY_SECONDS = 60.0  # after a refusal, such as for missing gas

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Announcer:
    """One task of the service. It compares with the newest announcement on chain, so a restart
    announces nothing again, and a restored backup needs no care.
    """

    client: ChainClient
    contracts: Contracts
    sender: Sender  # of the posting key
    clock: Clock
    coordinator: Address
    peer_key: Hash32
    addresses: Callable[[], tuple[str, ...]]  # that others dial now; none before the host listens

    async def run(self) -> None:
        """Announces each change of the addresses, until cancelled."""
        announced: tuple[str, ...] = ()
        while True:
            wanted, pause = fitting(self.addresses()), LOOK_SECONDS
            if wanted and wanted != announced:
                try:
                    await self.announce(wanted)
                    announced = wanted
                except (Refused, Unavailable) as error:
                    # Not re-raised: peers that know the coordinator reach it all the same.
                    log.warning("the coordinator's addresses are not on chain yet: %s", error)
                    pause = error.retry_after if isinstance(error, Unavailable) else RETRY_SECONDS
            await self.clock.sleep(max(pause, 1.0))

    async def announce(self, addresses: tuple[str, ...]) -> bool:
        """Announces these addresses unless the newest announcement has them. Returns whether it
        sent a transaction. Refused or Unavailable as `Sender.send`.
        """
        newest = await newest_announcement(self.client, self.contracts, self.coordinator)
        if newest and (newest.peer_key, newest.addresses) == (self.peer_key, addresses):
            return False
        text = "\n".join(addresses).encode()
        call = self.contracts.stakes.announce(self.coordinator, self.peer_key, text)
        # A content that returns later, after another one, is another purpose.
        after = newest.block if newest else 0
        purpose = f"announce-{after}-{keccak256(call.data).hex()[:16]}"
        await self.sender.send(
            purpose, call.to, call.data, gas=call.gas, deadline_seconds=SEND_SECONDS
        )
        log.info("announced %s on chain", ", ".join(addresses))
        return True


def fitting(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the first addresses that fit into an announcement."""
    found: tuple[str, ...] = ()
    for address in addresses[:ADDRESSES_MAX]:
        if len("\n".join((*found, address))) <= ADDRESSES_BYTES_MAX:
            found = (*found, address)
    return found
