"""The events of all contracts, and `decode_log`. Their classes stand in `generated`."""

from collections.abc import Mapping, Sequence

from quorate_contracts.artifact import artifact
from quorate_contracts.generated import beacon, court, escrow, faults, jobs, stakes
from quorate_contracts.generated.contract_calls import made
from quorate_protocol.units import Address, Hash32

Event = object
MODULES = {
    "Stakes": stakes,
    "Escrow": escrow,
    "Jobs": jobs,
    "Beacon": beacon,
    "Court": court,
    "Faults": faults,
}
KINDS: dict[str, dict[str, type]] = {
    name: {kind.__name__: kind for kind in module.EVENTS} for name, module in MODULES.items()
}


def decode_log(
    contracts: Mapping[Address, str], address: Address, topics: Sequence[bytes], data: bytes
) -> Event | None:
    """The event in a log of one of `contracts` (address to artifact name). None for logs of other
    contracts and for token transfers.
    """
    name = contracts.get(address)
    if name not in KINDS or not topics:
        return None
    form = artifact(name).events.get(Hash32(topics[0]))
    if form is None:
        return None
    values = form.parameters_of(topics, data)
    members = [values[parameter] for parameter, _, _ in form.parameters]
    event: Event = made(KINDS[name][form.name], members)
    return event
