"""`quorate offers --p2p` names what it lacks before it listens to anything."""

from pathlib import Path

import pytest

from quorate.base.exit_codes import ExitCode
from quorate.cli import offers
from quorate.cli.main import run_main
from quorate.trust import market_by_gossip
from quorate_contracts.deploy import Deployment, encode
from quorate_protocol.units import Address, BlockNumber, Seconds
from quorate_runtime.p2p import REMEDY

PLACES = [Address(bytes([number]) * 20) for number in range(1, 8)]
DEPLOYMENT = Deployment(31337, BlockNumber(0), "devnet", *PLACES, bytes(96), Seconds(2), 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "market.json"
    path.write_bytes(encode(DEPLOYMENT))
    return path


def test_what_is_missing_is_named(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path / "home"), "offers"]
    cases = (
        (["--for", "5s"], "need --p2p"),
        (["--p2p"], "--deployment FILE"),
        (["--p2p", "--deployment", str(file)], "--chain-url URL"),
        (["--p2p", "--deployment", str(file), "--chain-url", "ftp://x"], "--chain-url"),
        (["--p2p", "--deployment", str(tmp_path / "no"), "--chain-url", "http://x"], "no"),
        (["--p2p", "--for", "0s"], "--for: 0s must be above zero"),
    )
    for words, said in cases:
        assert run_main([*home, *words]) == ExitCode.USAGE
        assert said in capsys.readouterr().err


def test_a_client_without_libp2p_is_told_how_to_get_it(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for a machine without a compiler and GMP headers."""
    monkeypatch.setattr(market_by_gossip, "available", lambda: f"it cannot be imported: {REMEDY}")
    words = ["offers", "--p2p", "--deployment", str(file), "--chain-url", "http://127.0.0.1:1"]
    assert run_main(words) == ExitCode.UNAVAILABLE
    assert "pip install 'quorate[p2p]'" in capsys.readouterr().err


def test_the_default_time_covers_one_refresh_of_each_provider() -> None:
    assert market_by_gossip.listening_seconds(DEPLOYMENT) > DEPLOYMENT.constants().offer_refresh
    assert offers.SECONDS_MAX > 365, "the default of mainnet"
