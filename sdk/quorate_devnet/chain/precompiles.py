"""py-evm's Prague rules, with the slow functions of EIP-2537 (pairing, maps, multiplications) done
by a native library at the same gas.

py-evm computes them in pure Python, where one pairing check takes 0.2-0.8 s. The additions stay in
Python: they are fast, and they accept points outside the subgroup, which the native library
refuses. A test compares both versions.
"""

from collections.abc import Callable

from eth._utils.address import force_bytes_to_address
from eth.abc import ComputationAPI
from eth.exceptions import VMError
from eth.precompiles.bls12_381.constants import (
    BLS12_G1_MSM_GAS,
    BLS12_G2_MSM_GAS,
    BLS12_MAP_FP2_G2_GAS,
    BLS12_MAP_FP_G1_GAS,
    G1_MSM_DISCOUNTS,
    G1_MSM_MAX_DISCOUNT,
    G2_MSM_DISCOUNTS,
    G2_MSM_MAX_DISCOUNT,
    MSM_MULTIPLIER,
)
from eth.vm.forks.prague import PragueVM
from eth.vm.forks.prague.computation import PRAGUE_PRECOMPILES, PragueComputation
from eth.vm.forks.prague.constants import (
    BLS12_G1MSM_PRECOMPILE_ADDRESS,
    BLS12_G2MSM_PRECOMPILE_ADDRESS,
    BLS12_MAP_FP2_TO_G2_PRECOMPILE_ADDRESS,
    BLS12_MAP_FP_TO_G1_PRECOMPILE_ADDRESS,
    BLS12_PAIRING_CHECK_PRECOMPILE_ADDRESS,
)
from eth.vm.forks.prague.state import PragueState
from py_arkworks_bls12381 import GT, G1Point, G2Point, Scalar

_FIELD, _WIDE = 48, 64  # bytes of a field element, and as EIP-2537 pads it
_G1, _G2, _SCALAR = 2 * _WIDE, 4 * _WIDE, 32
_PAIR = _G1 + _G2


def pairing_check(computation: ComputationAPI) -> None:
    """0x0f: whether the product of pairings is one."""
    data = _sized(computation, _PAIR)
    count = len(data) // _PAIR
    computation.consume_gas(32_600 * count + 37_700, "BLS12_PAIRING_CHECK")
    firsts = [_g1(data[i : i + _G1]) for i in range(0, len(data), _PAIR)]
    seconds = [_g2(data[i + _G1 : i + _PAIR]) for i in range(0, len(data), _PAIR)]
    computation.output = int(GT.pairing_check(firsts, seconds)).to_bytes(32, "big")


def map_fp_to_g1(computation: ComputationAPI) -> None:
    """0x10: a field element to a G1 point."""
    data = _exactly(computation, _WIDE)
    computation.consume_gas(BLS12_MAP_FP_G1_GAS, "BLS12_MAP_FP_TO_G1")
    computation.output = _padded(
        _native(lambda: G1Point.map_from_fp_be(_narrow(data)).to_xy_bytes_be())
    )


def map_fp2_to_g2(computation: ComputationAPI) -> None:
    """0x11: two field elements to a G2 point."""
    data = _exactly(computation, 2 * _WIDE)
    computation.consume_gas(BLS12_MAP_FP2_G2_GAS, "BLS12_MAP_FP2_TO_G2")
    computation.output = _padded(
        _native(lambda: G2Point.map_from_fp2_be(_narrow(data)).to_xy_bytes_be())
    )


def g1_msm(computation: ComputationAPI) -> None:
    """0x0c: sum of G1 points times scalars."""
    step = _G1 + _SCALAR
    data = _sized(computation, step)
    count = len(data) // step
    discount = G1_MSM_DISCOUNTS[count - 1] if count <= 128 else G1_MSM_MAX_DISCOUNT
    computation.consume_gas(count * BLS12_G1_MSM_GAS * discount // MSM_MULTIPLIER, "BLS12_G1MSM")
    points = [_g1(data[i : i + _G1]) for i in range(0, len(data), step)]
    computation.output = _padded(
        G1Point.multiexp_unchecked(points, _scalars(data, step)).to_xy_bytes_be()
    )


def g2_msm(computation: ComputationAPI) -> None:
    """0x0e: sum of G2 points times scalars."""
    step = _G2 + _SCALAR
    data = _sized(computation, step)
    count = len(data) // step
    discount = G2_MSM_DISCOUNTS[count - 1] if count <= 128 else G2_MSM_MAX_DISCOUNT
    computation.consume_gas(count * BLS12_G2_MSM_GAS * discount // MSM_MULTIPLIER, "BLS12_G2MSM")
    points = [_g2(data[i : i + _G2]) for i in range(0, len(data), step)]
    computation.output = _padded(
        G2Point.multiexp_unchecked(points, _scalars(data, step)).to_xy_bytes_be()
    )


NATIVE: dict[bytes, Callable[[ComputationAPI], None]] = {
    BLS12_PAIRING_CHECK_PRECOMPILE_ADDRESS: pairing_check,
    BLS12_MAP_FP_TO_G1_PRECOMPILE_ADDRESS: map_fp_to_g1,
    BLS12_MAP_FP2_TO_G2_PRECOMPILE_ADDRESS: map_fp2_to_g2,
    BLS12_G1MSM_PRECOMPILE_ADDRESS: g1_msm,
    BLS12_G2MSM_PRECOMPILE_ADDRESS: g2_msm,
}
"""Short address -> replacement."""


class NativeComputation(PragueComputation):
    """Prague's rules of execution with the native functions."""

    _precompiles = {  # noqa: RUF012  py-evm declares it so
        **PRAGUE_PRECOMPILES,
        **{force_bytes_to_address(at): run for at, run in NATIVE.items()},
    }


class NativeState(PragueState):
    """Prague's state over `NativeComputation`."""

    computation_class = NativeComputation


class NativeVM(PragueVM):
    """Prague's block rules over `NativeState`."""

    _state_class = NativeState


def _sized(computation: ComputationAPI, step: int) -> bytes:
    data = bytes(computation.msg.data)
    if not data or len(data) % step:
        raise VMError(f"input is not a multiple of {step} bytes")
    return data


def _exactly(computation: ComputationAPI, size: int) -> bytes:
    data = bytes(computation.msg.data)
    if len(data) != size:
        raise VMError(f"input is not {size} bytes")
    return data


def _native(compute: Callable[[], bytes]) -> bytes:
    try:
        return compute()
    except ValueError as error:
        raise VMError(str(error)) from error


def _narrow(data: bytes) -> bytes:
    """Turns field elements of 64 bytes into ones of 48 bytes."""
    if any(data[i : i + _WIDE - _FIELD].strip(b"\0") for i in range(0, len(data), _WIDE)):
        raise VMError("coordinate >= field modulus")
    return b"".join(data[i + _WIDE - _FIELD : i + _WIDE] for i in range(0, len(data), _WIDE))


def _padded(coordinates: bytes) -> bytes:
    return b"".join(
        bytes(_WIDE - _FIELD) + coordinates[i : i + _FIELD]
        for i in range(0, len(coordinates), _FIELD)
    )


def _g1(data: bytes) -> G1Point:
    narrow = _narrow(data)
    try:
        return G1Point.from_xy_bytes_be(narrow) if any(narrow) else G1Point.identity()
    except ValueError as error:
        raise VMError(str(error)) from error


def _g2(data: bytes) -> G2Point:
    narrow = _narrow(data)
    try:
        return G2Point.from_xy_bytes_be(narrow) if any(narrow) else G2Point.identity()
    except ValueError as error:
        raise VMError(str(error)) from error


def _scalars(data: bytes, step: int) -> list[Scalar]:
    return [
        Scalar.from_be_bytes_mod_order(data[i + step - _SCALAR : i + step])
        for i in range(0, len(data), step)
    ]
