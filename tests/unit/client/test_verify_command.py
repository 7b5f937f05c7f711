"""Tests `quorate verify`: what it prints, what it pins, and what it says about bad input."""

import json
from pathlib import Path

import pytest

from quorate.base.exit_codes import ExitCode
from quorate.cli.main import run_main
from quorate_contracts.deploy import Deployment, encode
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.receipt import Receipt, document
from quorate_protocol.units import Address, BlockNumber
from quorate_protocol.values import replace
from support.markets.scripted_market import COORDINATOR, DOMAIN, GENESIS, INFO, Market, Party

STAKES = DOMAIN.verifying_contract
PLACES = (Address(b"\x01" * 20), STAKES, *(Address(bytes([n]) * 20) for n in range(2, 7)))
TRUSTED = Deployment(
    DOMAIN.chain_id,
    BlockNumber(0),
    "devnet",
    *PLACES,
    INFO.public_key,
    DEVNET.beacon_period,
    GENESIS,
)


@pytest.fixture(scope="module")
def market() -> Market:
    made = Market(*[Party(number) for number in range(4)])
    made.until_decided(made.order(0, 1))
    return made


@pytest.fixture
def receipt(market: Market, tmp_path: Path) -> Path:
    body = canonical.decode(Receipt, market.receipts[0])
    path = tmp_path / "receipt.json"
    path.write_bytes(document(body))
    return path


def trusted(folder: Path, deployment: Deployment) -> str:
    path = folder / "deployment.json"
    path.write_bytes(encode(deployment))
    return str(path)


@pytest.mark.rule("3.41", "3.59")
def test_who_was_paid_what_is_printed(receipt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["verify", str(receipt)]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("identities are not pinned")
    text = "\n".join(lines)
    for wanted in ("0x" + COORDINATOR.address.hex(), "31337", "0x" + STAKES.hex(), "accepted"):
        assert wanted in text
    assert text.count("agreed, 0.001 USD from the client") == 2 and "charged      0.00204" in text
    assert lines[-1].endswith("(chain_checked: false)")


@pytest.mark.rule("3.59")
def test_identities_are_pinned_by_a_deployment(
    receipt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["verify", str(receipt), "--json", "--deployment"]
    account = ["--coordinator", "0x" + COORDINATOR.address.hex()]
    assert run_main([*words, trusted(tmp_path, TRUSTED), *account]) == ExitCode.OK
    tree = json.loads(capsys.readouterr().out)
    assert tree["pinned"] is True and tree["valid"] is True and len(tree["executions"]) == 2
    for other, wrong in (
        (replace(TRUSTED, chain_id=1), "pin:network"),
        (replace(TRUSTED, beacon_key=bytes(96)), "pin:beacon"),
        (replace(TRUSTED, limits="mainnet"), "pin:timing"),
    ):
        code = run_main([*words, trusted(tmp_path, other)])
        tree = json.loads(capsys.readouterr().out)
        assert code == ExitCode.INVALID_EVIDENCE and tree["valid"] is False
        assert [item["name"] for item in tree["failed"]] == [wrong]
    stranger = ["--coordinator", "0x" + "07" * 20]
    assert run_main([*words, trusted(tmp_path, TRUSTED), *stranger]) == ExitCode.INVALID_EVIDENCE
    assert "pin:coordinator" in capsys.readouterr().out


@pytest.mark.rule("3.62", "3.60")
def test_the_spec_is_checked_beside_the_receipt(
    market: Market, receipt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (spec,) = market.specs.values()
    path = tmp_path / "spec.json"
    path.write_bytes(spec.encode())
    assert run_main(["verify", str(receipt), "--spec", str(path)]) == ExitCode.OK
    path.write_bytes(replace(spec, shell="another", argv=()).encode())
    code = run_main(["verify", str(receipt), "--spec", str(path)])
    assert code == ExitCode.INVALID_EVIDENCE
    assert "INVALID  spec: the file is not the spec" in capsys.readouterr().out


def test_bad_input_is_named(
    receipt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "garbage").write_bytes(b"{}")
    for words, wanted, code in (
        (["absent"], "No such file", ExitCode.USAGE),
        ([str(tmp_path / "garbage")], "is not a receipt", ExitCode.INVALID_EVIDENCE),
        ([str(receipt), "--rpc", "http://127.0.0.1:1"], "--deployment FILE", ExitCode.USAGE),
        ([str(receipt), "--deployment", str(receipt)], "describes no deployment", ExitCode.USAGE),
        ([str(receipt), "--coordinator", "0x12"], "no account", ExitCode.USAGE),
        ([], "name a receipt file", ExitCode.USAGE),
        (["--settlement", "0x" + "12" * 32], "needs --rpc URL", ExitCode.USAGE),
    ):
        assert run_main(["verify", *words]) == code, words
        found = capsys.readouterr()
        assert wanted in found.out + found.err, words
