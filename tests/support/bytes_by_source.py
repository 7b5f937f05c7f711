"""Reads from the status files of a devnet's providers what they fetched from where."""

from quorate_devnet.market.devnet import Devnet
from quorate_node.status.status import read_status


def bytes_by_source(devnet: Devnet) -> dict[str, int]:
    """Returns the verified bytes that all providers together have from `hub` and from `others`."""
    found = {"hub": 0, "others": 0}
    for number in range(devnet.config.providers):
        status = read_status(devnet.config.provider_status(number))
        for source, count in (status.bytes_by_source if status is not None else {}).items():
            found["hub" if source.startswith("source ") else "others"] += count
    return found
