"""The deployment that a user trusts, from a file. At first contact, the program refuses a
coordinator that names another deployment.

A home keeps the file and its hash. So a file that was changed after `init` is refused too.
"""

from pathlib import Path

from quorate_contracts.deploy import Deployment, decode, digest, encode
from quorate_protocol.codec import canonical
from quorate_protocol.messages.views import InfoView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH

FILE = "deployment.json"  # in the home of a provider or client
PIN = "deployment.sha256"  # the hash of that file's deployment, beside it
FILE_BYTES_MAX = 1 << 20


def split(named: Path) -> tuple[Path, str]:
    """Returns the path and the hash of FILE or FILE#HASH. The hash is "" without one."""
    place, mark, wanted = str(named).rpartition("#")
    if not mark or named.exists():
        return named, ""
    return Path(place), wanted.lower().removeprefix("0x")


def check_hash(path: Path, made: Deployment, wanted: str) -> None:
    """Raises Refused(MALFORMED) if a deployment has not the hash that was typed after its file."""
    if wanted and digest(made) != wanted:
        raise Refused(
            Code.MALFORMED,
            f"{path} has the hash {digest(made)}, not {wanted[:64]}: get the file and its hash "
            f"from the market again",
        )


def read(named: Path) -> Deployment:
    """Returns the deployment of a deployment.json or of a devnet.json.

    After its path may stand # and the hash that its market publishes; then it must have this hash.
    Raises Refused(MALFORMED), which names the file and what is wrong with it.
    """
    path, wanted = split(named)
    try:
        with path.open("rb") as file:
            tree = canonical.parse(file.read(FILE_BYTES_MAX + 1), FILE_BYTES_MAX)
        made: Deployment = canonical.from_json(
            Deployment,
            tree["deployment"] if isinstance(tree, dict) and "deployment" in tree else tree,
        )
    except OSError as error:
        raise Refused(
            Code.MALFORMED,
            f"{path}: {error.strerror}; it is the deployment.json of a market that you trust",
        ) from error
    except Refused as refused:
        raise Refused(
            Code.MALFORMED, f"{path} describes no deployment: {refused.detail}"
        ) from refused
    check_hash(path, made, wanted)
    return made


def keep(home: Path, deployment: Deployment | None) -> None:
    """Stores the only deployment that the program of this folder accepts. None changes nothing."""
    if deployment is None:
        return
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = home / (FILE + ".part")
    part.write_bytes(encode(deployment))
    (home / PIN).write_text(digest(deployment) + "\n")
    part.replace(home / FILE)


def _check_pin(home: Path, known: Deployment) -> None:
    """Raises Refused if the kept file is not the one that `init` was given."""
    pin = home / PIN
    if pin.exists() and (pinned := pin.read_text()[:80].strip()) != digest(known):
        raise Refused(
            Code.MALFORMED,
            f"its hash is {digest(known)}, and `init` was given {pinned}; name the file that you "
            f"trust: init --deployment FILE",
        )


def strange(home: Path, info: InfoView) -> str:
    """Returns what is wrong with the deployment that a coordinator names, and the remedy. Returns
    "" when `home` trusts that deployment or has no file of a trusted one.
    """
    path = home / FILE
    try:
        known = decode(path.read_bytes())
        _check_pin(home, known)
    except FileNotFoundError:
        return ""  # without a file, the first coordinator's word is accepted
    except (OSError, Refused) as error:
        return (
            f"{path} cannot be used ({error}): put the deployment.json that you trust in its place"
        )
    named: dict[str, object] = {**info.contracts, "chain": info.chain_id, "limits": info.limits}
    named |= {"beacon": (info.beacon.public_key, info.beacon.period, info.beacon.genesis_time)}
    wanted: dict[str, object] = {name: address for address, name in known.names().items()}
    wanted |= {"chain": known.chain_id, "limits": known.limits}
    if known.genesis != ZERO_HASH:
        named, wanted = named | {"genesis": info.genesis}, wanted | {"genesis": known.genesis}
    wanted |= {"beacon": (known.beacon_key, known.beacon_period, known.beacon_genesis)}
    others = [name for name, value in wanted.items() if named.get(name) != value]
    if not others:
        return ""
    told = (
        f"the coordinator 0x{info.coordinator.hex()} names another {', '.join(others)} than {path}"
    )
    return (
        f"{told}: nothing is deposited, staked or signed there. If you trust the other "
        f"deployment now: init --deployment FILE"
    )
