"""Tests that a program finds every contract whose code, constants or partners are not the
deployment's.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

import pytest
from vyper.cli.vyper_json import compile_json

from contracts.evm import Evm
from contracts.evm_node import EvmNode
from contracts.market import BOSS, planned
from quorate_contracts.artifact import CONTRACTS, artifact
from quorate_contracts.chain_cli.verification import standard_json
from quorate_contracts.code_check import TOKEN, Expected, check_codes
from quorate_contracts.deploy import Deployment
from quorate_protocol.limits import DEVNET, MAINNET, TESTNET, Limits
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address
from quorate_protocol.values import replace as changed

OTHER = Address(b"\x0f" * 20)


@dataclass
class Chain(EvmNode):
    """A chain where some addresses have other code."""

    codes: dict[Address, bytes] = field(default_factory=dict)

    async def code(self, account: Address) -> bytes:
        return self.codes[account] if account in self.codes else self.evm.code(account)


@lru_cache(maxsize=4)
def deployed(limits: Limits) -> tuple[Evm, Deployment]:
    evm, made = Evm.fresh(), planned(limits)
    for creation in made.creations:
        evm.create(creation, BOSS.address)
    return evm, made.deployment


def chain_of(limits: Limits) -> tuple[Chain, Deployment]:
    evm, deployment = deployed(limits)
    return Chain(evm), deployment


async def found(chain: Chain, expected: Expected) -> dict[str, Address]:
    return await check_codes(cast("Any", chain), expected)


@pytest.mark.parametrize("limits", [DEVNET, TESTNET, MAINNET], ids=lambda limits: limits.name)
async def test_every_contract_of_a_deployment_has_the_code_and_constants_of_its_limits(
    limits: Limits,
) -> None:
    chain, deployment = chain_of(limits)
    names = deployment.places()
    assert await found(chain, Expected.of(deployment)) == names


async def test_a_client_finds_the_other_contracts_in_the_code_of_those_that_it_knows() -> None:
    chain, deployment = chain_of(DEVNET)
    names = deployment.places()
    known = {name: names[name] for name in ("Stakes", "Escrow", TOKEN)}
    expected = Expected(known, DEVNET, deployment.beacon_info())
    reached = await found(chain, expected)
    assert reached.items() <= names.items()
    assert {"Jobs", "Court", "Faults"} <= reached.keys()
    court = chain.evm.code(names["Court"])
    chain.codes[names["Court"]] = court[:100] + bytes([court[100] ^ 1]) + court[101:]
    with pytest.raises(Refused, match="the Court contract at .* has other code"):
        await found(chain, expected)


@pytest.mark.parametrize("name", [name for name in CONTRACTS if name != TOKEN])
async def test_one_changed_byte_of_any_contract_is_refused(name: str) -> None:
    """In the code, in an immutable, one word more, one word less, or no code."""
    chain, deployment = chain_of(DEVNET)
    place = deployment.places()[name]
    code, size = chain.evm.code(place), artifact(name).runtime_bytes
    for at, told in ((0, "has other code"), (size - 1, "has other code"), (size + 31, "another")):
        chain.codes[place] = code[:at] + bytes([code[at] ^ 1]) + code[at + 1 :]
        with pytest.raises(Refused, match=told):
            await found(chain, Expected.of(deployment))
    for other in (code + bytes(32), code[:-32]):
        chain.codes[place] = other
        with pytest.raises(Refused, match=f"the {name} contract"):
            await found(chain, Expected.of(deployment))
    chain.codes[place] = b""
    with pytest.raises(Refused, match=f"no {name} contract at"):
        await found(chain, Expected.of(deployment))


async def test_a_deployment_with_other_limits_beacon_or_addresses_is_refused() -> None:
    chain, deployment = chain_of(DEVNET)
    wrong = Expected.of(deployment)
    for other, told in (
        (replace(wrong, limits=TESTNET), "another [A-Z_]+ than the limits or the beacon"),
        (
            replace(wrong, beacon=changed(wrong.beacon, genesis_time=5)),
            "the Beacon contract .* another GENESIS",
        ),
        (Expected.of(changed(deployment, token=deployment.jobs)), "works with another TestToken"),
        (Expected.of(changed(deployment, court=OTHER)), "no Court contract at"),
    ):
        with pytest.raises(Refused, match=told):
            await found(chain, other)


def test_the_verification_input_compiles_to_the_code_that_is_deployed() -> None:
    """A block explorer compiles this, with other paths than this repository's."""
    name = "Escrow"
    made = compile_json(cast("Any", standard_json(name)))["contracts"][f"{name}.vy"][name]
    assert bytes.fromhex(made["evm"]["bytecode"]["object"].removeprefix("0x")) == (
        artifact(name).bytecode
    )
