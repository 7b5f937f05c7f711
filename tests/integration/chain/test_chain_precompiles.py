"""Compares the native EIP-2537 functions with py-evm's own: same output, same gas, same
refusals.
"""

import time
from dataclasses import dataclass, field
from hashlib import sha256
from types import SimpleNamespace

import pytest
from eth._utils.address import force_bytes_to_address
from eth.exceptions import VMError
from eth.vm.forks.prague.computation import PRAGUE_PRECOMPILES
from py_arkworks_bls12381 import G1Point, G2Point, Scalar

from quorate_devnet.chain.precompiles import NATIVE, NativeComputation
from quorate_protocol.units import Address
from quorate_runtime.keys import bls
from support.chain.chain_nodes import node

PAIRING, MAP_G1, MAP_G2, MSM_G1, MSM_G2 = b"\x0f", b"\x10", b"\x11", b"\x0c", b"\x0e"
MODULUS = int(
    "1A0111EA397FE69A4B1BA7B6434BACD764774B84F38512BF"
    "6730D2A0F6B0F6241EABFFFEB153FFFFB9FEFFFFFFFFAAAB",
    16,
)


@dataclass
class Run:
    """As much of a computation as a precompile touches."""

    msg: SimpleNamespace
    output: bytes = b""
    charged: list[int] = field(default_factory=list)

    def consume_gas(self, amount: int, reason: str) -> None:
        self.charged.append(amount)


def run(function: object, data: bytes) -> tuple[str, bytes, list[int]]:
    computation = Run(SimpleNamespace(data=data))
    try:
        function(computation)  # type: ignore[operator]
    except VMError:
        return "refused", b"", computation.charged
    return "ran", computation.output, computation.charged


def padded(coordinates: bytes) -> bytes:
    return b"".join(bytes(16) + coordinates[i : i + 48] for i in range(0, len(coordinates), 48))


def g1(factor: int) -> bytes:
    return padded((G1Point() * Scalar(factor)).to_xy_bytes_be())


def g2(factor: int) -> bytes:
    return padded((G2Point() * Scalar(factor)).to_xy_bytes_be())


def element(value: int) -> bytes:
    return value.to_bytes(64, "big")


ON_CURVE_OUTSIDE_SUBGROUP = element(0) + element(2)  # y^2 = x^3 + 4, of order 3
INFINITY = {PAIRING: bytes(384), MSM_G1: bytes(160), MSM_G2: bytes(288)}
CASES = [
    (
        PAIRING,
        g1(6) + g2(5) + padded((-(G1Point() * Scalar(30))).to_xy_bytes_be()) + g2(1),
    ),  # 6*5 = 30: one
    (PAIRING, g1(6) + g2(5) + g1(7) + g2(1)),  # not one
    (PAIRING, bytes(128) + g2(5)),
    (PAIRING, ON_CURVE_OUTSIDE_SUBGROUP + g2(1)),
    (PAIRING, element(1) + element(1) + g2(1)),  # not on the curve
    (PAIRING, g1(1)[:64] + element(MODULUS) + g2(1)),
    (PAIRING, g1(1) + g2(1)[:-1]),
    (PAIRING, b""),
    (MAP_G1, element(5)),
    (MAP_G1, element(0)),
    (MAP_G1, element(MODULUS - 1)),
    (MAP_G1, element(MODULUS)),
    (MAP_G1, bytes([1]) + bytes(63)),
    (MAP_G1, bytes(63)),
    (MAP_G2, element(3) + element(4)),
    (MAP_G2, element(3) + element(MODULUS)),
    (MSM_G1, g1(3) + bytes(31) + b"\x05" + g1(4) + b"\xff" * 32),
    (MSM_G1, ON_CURVE_OUTSIDE_SUBGROUP + bytes(32)),
    (MSM_G1, bytes(159)),
    (MSM_G2, g2(3) + bytes(31) + b"\x05" + g2(4) + bytes(32)),
    *INFINITY.items(),
]


@pytest.mark.rule("9.5")
@pytest.mark.parametrize(
    ("address", "data"),
    CASES,
    ids=[f"{address.hex()}-{place}" for place, (address, _) in enumerate(CASES)],
)
def test_native_equals_pure_python(address: bytes, data: bytes) -> None:
    pure = PRAGUE_PRECOMPILES[force_bytes_to_address(address)]
    native = NATIVE[address]
    assert native is not pure
    assert run(native, data) == run(pure, data)


async def test_a_quicknet_round_is_checked_on_chain_in_milliseconds() -> None:
    key = bytes.fromhex(
        "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
        "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
    )
    signature = bytes.fromhex(
        "b713718a38ae728dfd477991af2822e08d2f305e47718cef9f7848ce4050e7be41076862b98fad56e91a6b85b89cd97b"
    )
    message = padded(
        G1Point.hash_to_curve(
            sha256((657413).to_bytes(8, "big")).digest(), bls.DOMAIN
        ).to_xy_bytes_be()
    )
    minus_one = padded((-G2Point()).to_xy_bytes_be())
    point, key_point = (
        bls.words_bytes(bls.signature_words(signature)),
        bls.words_bytes(bls.public_key_words(key)),
    )
    address = Address(force_bytes_to_address(PAIRING))
    async with node("devnet") as chain:
        true, false = point + minus_one, message + minus_one
        for begin, answer in ((true, 1), (false, 0)):  # the first call also loads what it needs
            started = time.process_time()
            found = await chain.client.call(address, begin + message + key_point)
            assert int.from_bytes(found, "big") == answer
        assert time.process_time() - started < 0.4  # pure Python takes 0.75 s


def test_the_virtual_machine_uses_the_native_functions() -> None:
    table = NativeComputation.get_precompiles()
    assert all(
        table[force_bytes_to_address(address)] is function for address, function in NATIVE.items()
    )
    assert table.keys() == PRAGUE_PRECOMPILES.keys()
