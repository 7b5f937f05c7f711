"""Compares the CUDA that an image needs with the one that the machine's driver supports.

An image states its requirement in the environment variable `NVIDIA_REQUIRE_CUDA`, for example
`cuda>=12.4 brand=tesla,driver>=535,driver<536`: one of the parts between spaces is enough, with all
of its conditions. An image without it may have `CUDA_VERSION`. Source:
https://github.com/NVIDIA/nvidia-container-toolkit (NVIDIA_REQUIRE_*).
"""

import re
from collections.abc import Mapping

from quorate_node.core.terms import GpuDriver

REQUIREMENT_MAX = 4096  # characters of a requirement that are read
_CONDITION = re.compile(r"(cuda|driver)(>=|<=|=|>|<)([0-9.]{1,32})", re.ASCII)
_LEAST_CUDA = re.compile(r"\bcuda>=([0-9]{1,3}(?:\.[0-9]{1,3})?)", re.ASCII)


def requirement_of(env: Mapping[str, str]) -> str:
    """Empty if the image states none."""
    stated = env.get("NVIDIA_REQUIRE_CUDA", "")[:REQUIREMENT_MAX]
    version = ".".join(env.get("CUDA_VERSION", "")[:32].split(".")[:2])
    return stated or (f"cuda>={version}" if version else "")


def problem(requirement: str, driver: GpuDriver) -> str:
    """Says why the driver is too old; "" if it is not. Brands count as met, because only the
    engine's hook knows them; so does what cannot be read.
    """
    if not requirement or not driver.cuda_version:
        return ""
    if any(_is_met(part, driver) for part in requirement.split()):
        return ""
    least = _LEAST_CUDA.search(requirement)
    needs = f"CUDA {least[1]}" if least else requirement[:80]
    return (
        f"image: it needs {needs}, and driver {driver.version} of this machine supports CUDA "
        f"{driver.cuda_version}; a job says what its image needs with min_cuda"
    )


def _is_met(part: str, driver: GpuDriver) -> bool:
    has = {"cuda": driver.cuda_version, "driver": driver.version}
    for condition in part.split(","):
        match = _CONDITION.fullmatch(condition)
        if match is not None and not _holds(_numbers(has[match[1]]), match[2], _numbers(match[3])):
            return False
    return True


def _holds(has: tuple[int, ...], relation: str, wanted: tuple[int, ...]) -> bool:
    """Compares versions as far as the wanted one is given: driver 535.104 is not above 535."""
    has = has[: len(wanted)]
    match relation:
        case ">=":
            return has >= wanted
        case "<=":
            return has <= wanted
        case ">":
            return has > wanted
        case "<":
            return has < wanted
        case _:
            return has == wanted


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)
