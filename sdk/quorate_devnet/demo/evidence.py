"""What a reader of the demo can check alone: the lie as a picture, one tile computed again here,
and a receipt against the chain.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from quorate.client.market import Market
from quorate.trust import receipt_verification as verification
from quorate.trust.receipt_chain import check_chain
from quorate_contracts.deploy import Deployment, encode
from quorate_devnet.demo.pictures import beside
from quorate_devnet.demo.scenario import TILE_FILE, Scene
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.messages.views import RunView
from quorate_protocol.units import Address
from quorate_runtime.chain import Rpc

REPEAT_SECONDS = 60
RECEIPT, DEPLOYMENT, CHAIN, LIE = "receipt.json", "deployment.json", "chain.json", "lie.png"


@dataclass(frozen=True, slots=True)
class DemoEvidence:
    """`true`, `false` and `here` are SHA-256 of one tile: as two owners gave it, as the liar did,
    and as this machine computes it. `here` is empty if it cannot, and `problem` says why.

    `checks` counts what was compared, on chain too; `failed` names what did not hold.
    `refusal` is the check that fails once one byte of the receipt is flipped.
    """

    run: str
    true: str
    false: str
    here: str
    problem: str
    checks: int
    failed: tuple[str, ...]
    refusal: str


async def show_lie(
    market: Market, run: RunView, liar: Address, receipt: Path, scene: Scene, out: Path
) -> tuple[bytes, bytes]:
    """Writes the true tile beside the false one. Returns both."""
    body = verification.body_of(verification.read(receipt))
    assert body is not None, "this client has checked it"
    by = [party.owner for party in body.taken_from_chain.parties]
    agreed = {item.provider for item in run.executions if item.agreed}
    places = next(place for place, account in enumerate(by) if account in agreed), by.index(liar)
    with tempfile.TemporaryDirectory(prefix="quorate-lie-") as folder:
        await market.fetch_executions(body, places, Path(folder))
        true, false = ((Path(folder) / f"{place}" / TILE_FILE).read_bytes() for place in places)
    (out / LIE).write_bytes(beside(true, false, scene.tile_width, scene.tile_height))
    return true, false


def repeat_here(scene: Scene, tile: int) -> tuple[str, str]:
    """Computes a tile in a process of this Python. Returns its SHA-256, or "" and the cause."""
    with tempfile.TemporaryDirectory(prefix="quorate-tile-") as folder:
        made = Path(folder) / TILE_FILE
        words = [sys.executable, str(scene.program), str(scene.path), str(tile), str(made)]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=REPEAT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "", f"it took more than {REPEAT_SECONDS} s"
        if done.returncode:
            return "", (done.stderr.strip().splitlines() or ["it failed"])[-1][:200]
        return sha256(made.read_bytes()).hex(), ""


async def check_receipt(
    receipt: Path, deployment: Deployment, url: str, out: Path
) -> tuple[int, tuple[str, ...]]:
    """Checks the receipt as `quorate verify --deployment --rpc` does, and keeps what it needs.

    Returns how many checks there were, and which failed.
    """
    data = verification.read(receipt)
    report, body = verification.verify(data), verification.body_of(data)
    found = list(report.checks)
    if body is not None:
        found += verification.pinned(body, deployment)
        found += await check_chain(body, deployment, url)
    (out / DEPLOYMENT).write_bytes(encode(deployment))
    return len(found), tuple(check.name for check in found if not check.is_good)


async def keep_chain(rpc: Rpc, out: Path) -> None:
    """Keeps the devnet's chain, so that `quorate devnet chain` can serve it again."""
    saved = await rpc.request("devnet_export")
    (out / CHAIN).write_text(json.dumps(saved) + "\n")


def flip_a_byte(receipt: Path) -> str:
    """Returns the first check that fails once one byte of a signature is another; "" if none."""
    data = verification.read(receipt)
    place = data.index(b'"sig"') + 12
    other = b"1" if data[place : place + 1] == b"0" else b"0"
    report = verification.verify(data[:place] + other + data[place + 1 :])
    return next((check.name for check in report.checks if not check.is_good), "")
