"""The file beside `deployment.json` while a deployment is under way: `deployment.json.begun`.

It is written before the first transaction, so that a repeated command goes on with the same
addresses. It is removed once `deployment.json` is there.
"""

from pathlib import Path

from msgspec import Struct

from quorate_contracts.deploy import Deployment, Plan
from quorate_protocol.codec import canonical
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32
from quorate_runtime.files import write_atomic

FILE_BYTES_MAX = 1 << 20


class Begun(Struct, frozen=True):
    """What was planned. `code` is the digest of all creation data, which differs between versions
    of the contracts.
    """

    deployer: Address
    nonce: int
    code: Hash32
    deployment: Deployment


def begun_path(out: Path) -> Path:
    """Returns the file's path."""
    return out.with_name(out.name + ".begun")


def begun_of(deployer: Address, nonce: int, plan: Plan) -> Begun:
    """Returns the content for a plan."""
    code = keccak256(b"".join(item.data for item in plan.creations))
    return Begun(deployer, nonce, Hash32(code), plan.deployment)


def read_begun(out: Path) -> Begun | None:
    """Reads the file; None if there is none. Raises Refused, with the remedy, if it is damaged."""
    path = begun_path(out)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None  # not re-raised: nothing has begun
    try:
        begun: Begun = canonical.decode(Begun, data)
    except Refused as refused:
        detail = f"{path} is damaged ({refused.detail}): move it away to deploy new contracts"
        raise Refused(Code.MALFORMED, detail) from refused
    return begun


def write_begun(out: Path, begun: Begun) -> None:
    """Writes the file durably."""
    write_atomic(begun_path(out), canonical.encode(begun))
