"""Tests of the typed Python that is written from each contract's ABI."""

from typing import Any

import pytest

from quorate_contracts.artifact import CONTRACTS, artifact
from quorate_contracts.generated import binding_writer
from quorate_contracts.generated.contract_calls import made
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address

PLACE = Address(b"\x11" * 20)
OWNER = Address(b"\x22" * 20)


def module(name: str) -> dict[str, Any]:
    """Runs the module that is written for a contract, and returns its names."""
    names: dict[str, Any] = {"__name__": f"written_{name.lower()}"}
    exec(binding_writer.text_of(name, artifact(name).abi, {}), names)
    return names


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_function_and_event_of_a_contract_is_written_once(name: str) -> None:
    names = module(name)
    written = names[binding_writer.CLASSES.get(name, name)]
    for function in artifact(name).functions:
        assert hasattr(written, binding_writer.snake(function)), function
    assert {kind.__name__ for kind in names["EVENTS"]} == {
        kind.name for kind in artifact(name).events.values()
    }


def test_a_query_encodes_its_arguments_and_reads_structs() -> None:
    stakes = module("Stakes")["Stakes"](PLACE)
    query = stakes.slot(b"\x33" * 32, 7)
    assert query.to == PLACE
    assert query.data == artifact("Stakes").functions["slot"].call_data([b"\x33" * 32, 7])
    words = [bytes(12) + OWNER] * 3 + [b"\x44" * 32, bytes(31) + b"\x05", bytes(31) + b"\x09"]
    found = query.decode(b"".join(words))
    assert (found.owner, found.network, found.until_block) == (OWNER, b"\x44" * 32, 9)
    with pytest.raises(Unavailable, match="no slot"):
        query.decode(b"".join(words)[:-1])


def test_an_event_with_another_count_of_members_is_refused() -> None:
    opened = module("Stakes")["SlotOpened"]
    assert made(opened, [b"\x33" * 32, OWNER, 7, 8]).from_block == 8
    with pytest.raises(ValueError, match="has 4 members, not 3"):
        made(opened, [b"\x33" * 32, OWNER, 7])
