"""Runs `quorate devnet demo --json` as a user does and checks every field of its answer against the
others.
"""

import json
import struct
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quorate import verify
from quorate_content.dag.disk_tree import cid_of_path
from quorate_runtime import p2p
from support.requirements import missing, require, required

QUORATE = str(Path(sys.executable).with_name("quorate"))
SECONDS_MAX = 600  # the demo's own bound, for a machine that is busy with other tests
JOBS_MIN = 8 + 4
FIELDS = {
    "executor",
    "transport",
    "content",
    "bytes_by_source",
    "job_ids",
    "offers",
    "result_cid",
    "image_cid",
    "executions",
    "verdict",
    "strikes",
    "case",
    "slashed",
    "paid",
    "drawn",
    "payroll",
    "vouchers",
    "settled_on_chain",
    "gas",
    "coordinator_restarts",
    "conserved",
    "evidence",
    "seconds",
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "demo-out"


@pytest.fixture(scope="module")
def answer(out: Path) -> dict[str, Any]:
    """The demo's last line. The demo runs once for all tests."""
    if "docker" in required():
        require("docker")
    executor = "docker" if missing("docker") is None else "process"
    command = [QUORATE, "devnet", "demo", "--json", "--executor", executor, "--out", str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX + 30, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("NO PROTECTION" in done.stderr) == (executor == "process"), (
        "plain processes run under a red banner"
    )
    tree: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert tree["executor"] == executor
    return tree


def liar_of(answer: dict[str, Any]) -> str:
    accused = {item["provider"] for item in answer["executions"] if not item["agreed"]}
    assert len(accused) == 1, "one liar was outvoted, and nobody else"
    return str(accused.pop())


def test_the_answer_has_every_field(answer: dict[str, Any]) -> None:
    assert answer.keys() == FIELDS
    transport = "websocket" if p2p.available() else "libp2p"
    assert answer["transport"] == transport and answer["verdict"] == "accepted"
    assert answer["coordinator_restarts"] == 1, "killed while runs were under way"
    assert 0 < answer["seconds"] <= SECONDS_MAX
    assert len(set(answer["job_ids"])) == len(answer["job_ids"]) >= JOBS_MIN


@pytest.mark.rule("10.18")
def test_every_offer_carries_verified_records(answer: dict[str, Any]) -> None:
    offers = answer["offers"]
    assert len({offer["provider"] for offer in offers}) == len(offers) == 5
    assert all((offer["level"], offer["verified"]) == (1, True) for offer in offers)


def test_image_and_inputs_came_by_cid_from_elsewhere(answer: dict[str, Any]) -> None:
    """From IPFS peers with bitswap where they are built; else the line names what stands in."""
    is_built = missing("gopeer") is None
    assert answer["content"]["from"] == ("ipfs" if is_built else "gateway")
    assert ("make-gopeer" in answer["content"]["instead_of"]) == (not is_built)
    elsewhere = [
        count
        for source, count in answer["bytes_by_source"].items()
        if source.startswith("gateway ")
    ]
    of_coordinator = sum(answer["bytes_by_source"].values()) - sum(elsewhere)
    assert sum(elsewhere) > 10_000_000, "at least one image"
    assert of_coordinator < sum(elsewhere) / 10, "job specs and proofs of attestation"


def test_two_independent_owners_agree_on_every_job(answer: dict[str, Any]) -> None:
    for job in answer["job_ids"]:
        runs = [item for item in answer["executions"] if item["job"] == job]
        agreed = [item["provider"] for item in runs if item["agreed"]]
        assert len(set(agreed)) == len(agreed) == 2, "quorum-2"
        assert Counter(item["role"] for item in runs)["primary"] == 1
    assert {item["job"] for item in answer["executions"]} == set(answer["job_ids"])


def test_every_lie_is_caught_and_struck(answer: dict[str, Any]) -> None:
    liar = liar_of(answer)
    lies = [item for item in answer["executions"] if item["provider"] == liar]
    assert len(lies) >= 2 and not any(item["agreed"] for item in lies)
    assert [item["provider"] for item in answer["strikes"]] == [liar] and answer["strikes"][0][
        "strikes"
    ] >= 2


def test_the_jury_convicts_the_liar_over_one_lie(answer: dict[str, Any]) -> None:
    liar, case = liar_of(answer), answer["case"]
    assert case["convicted"] is True
    lie = {"job": case["job"], "provider": liar, "agreed": False}
    assert lie.items() <= find(answer, case["job"], liar).items()
    assert len(set(case["jurors"])) >= 3 and liar not in case["jurors"]
    assert [item["provider"] for item in answer["slashed"]] == [liar] and answer["slashed"][0][
        "amount"
    ] > 0


def find(answer: dict[str, Any], job: str, provider: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        item for item in answer["executions"] if item["job"] == job and item["provider"] == provider
    )
    return found


def test_the_honest_are_paid_and_money_is_conserved(answer: dict[str, Any]) -> None:
    honest = {item["provider"] for item in answer["executions"] if item["agreed"]}
    assert set(answer["paid"]) <= honest and all(amount > 0 for amount in answer["paid"].values())
    assert answer["paid"] and answer["payroll"]["transactions"] > 0 < answer["payroll"]["amount"]
    assert answer["vouchers"]["redeemed"] > 0 < answer["vouchers"]["amount"]
    assert answer["settled_on_chain"] == 1 and set(answer["drawn"]) <= honest and answer["drawn"]
    assert answer["conserved"] is True
    assert all(
        21_000 < answer["gas"][name] < 16_000_000
        for name in ("payroll", "redeem", "fund", "show", "pay", "case_open", "case_decide")
    )


def test_the_picture_is_real(answer: dict[str, Any], out: Path) -> None:
    data = (out / "render.png").read_bytes()
    assert str(cid_of_path(out / "render.png")) == answer["result_cid"]
    chunks = read_chunks(data)
    width, height, depth, colour = struct.unpack(">IIBB", chunks[0][1][:10])
    assert (chunks[0][0], width, height, depth, colour) == (b"IHDR", 320, 240, 8, 2) and chunks[
        -1
    ] == (b"IEND", b"")
    rows = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
    assert len(rows) == height * (1 + 3 * width)
    top, bottom = rows[1 : 1 + 3 * width], rows[-3 * width :]
    assert top[2] > 120 and len(set(bottom)) > 32, "a light sky above a chessboard"


def read_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Returns (kind, body) of a PNG's chunks and checks their checksums."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = [], 8
    while place < len(data):
        size, kind = struct.unpack(">I4s", data[place : place + 8])
        body = data[place + 8 : place + 8 + size]
        assert zlib.crc32(kind + body) == int.from_bytes(
            data[place + 8 + size : place + 12 + size], "big"
        )
        chunks.append((kind, body))
        place += 12 + size
    return chunks


def test_the_receipt_of_a_lie_verifies(answer: dict[str, Any], out: Path) -> None:
    command = [QUORATE, "verify", str(out / "receipt.json"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    tree = json.loads(done.stdout)
    assert done.returncode == 0 and tree["valid"] is True and tree["chain_checked"] is False
    job = "0x" + json.loads((out / "receipt.json").read_text())["body"]["verdict"]["body"][
        "jobId"
    ].removeprefix("0x")
    assert find(answer, job, liar_of(answer))["agreed"] is False


@pytest.mark.rule("3.40")
def test_any_flipped_byte_is_detected(answer: dict[str, Any], out: Path) -> None:
    data = (out / "receipt.json").read_bytes()
    for place in range(7, len(data), max(1, len(data) // 60)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        report = verify(changed)
        assert not report.valid and report.failures, (
            f"byte {place} can be changed unnoticed: {data[place - 20 : place + 20]!r}"
        )


def test_a_flipped_byte_fails_the_command(
    answer: dict[str, Any], out: Path, tmp_path: Path
) -> None:
    data = (out / "receipt.json").read_bytes()
    place = data.index(b'"sig"') + 12
    (tmp_path / "receipt.json").write_bytes(
        data[:place] + (b"1" if data[place : place + 1] == b"0" else b"0") + data[place + 1 :]
    )
    command = [QUORATE, "verify", str(tmp_path / "receipt.json"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert json.loads(done.stdout)["failed"][0]["name"], "which signature or hash fails"


def test_the_lie_is_shown_and_the_tile_is_computed_here(answer: dict[str, Any], out: Path) -> None:
    shown = answer["evidence"]
    assert shown["here"] == shown["true"] != shown["false"], shown["problem"]
    assert shown["failed"] == [] and shown["checks"] > 100 and shown["refusal"]
    header = read_chunks((out / "lie.png").read_bytes())[0][1]
    width, height = struct.unpack(">II", header[:8])
    assert (width, height) == (3 * 2 * 80 + 2 * 8, 2 * 120), "true, false, and the difference"


@pytest.mark.rule("3.61")
def test_the_kept_chain_proves_the_receipt_afterwards(answer: dict[str, Any], out: Path) -> None:
    command = [QUORATE, "devnet", "chain", str(out / "chain.json"), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as chain:
        try:
            assert chain.stdout is not None
            url = json.loads(chain.stdout.readline())["chainUrl"]
            words = ["--deployment", str(out / "deployment.json"), "--rpc", url, "--json"]
            done = subprocess.run(
                [QUORATE, "verify", str(out / "receipt.json"), *words],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            chain.terminate()
    tree = json.loads(done.stdout)
    assert tree["valid"] and tree["pinned"] and tree["chain_checked"], done.stderr
    assert tree["checks"] == answer["evidence"]["checks"]
