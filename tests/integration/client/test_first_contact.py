"""Providers stake and clients deposit only on the contracts that their coordinator named at first
contact.
"""

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from typer.testing import CliRunner

from quorate.base.errors import EvidenceError
from quorate.cli.main import run_main
from quorate.trust.coordinator_identity import check_identity
from quorate_contracts import deploy, trusted_deployment
from quorate_contracts.artifact import CONTRACTS
from quorate_contracts.deploy import Contracts, Deployment
from quorate_node.base import settings
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.cli.app import app as node
from quorate_node.market.coordinator_client import fetch_info, saved_info_path
from quorate_node.owner.registration import register
from quorate_protocol.codec import canonical
from quorate_protocol.messages.views import BeaconView, InfoView
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, BlockNumber, Bps, Hash32, Seconds
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient, Rpc, Sender
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import KeySigner, PeerKey
from support.cli_prompt import password_file, typed
from support.http_server import on_loopback

NAMES = CONTRACTS
FIRST = InfoView(
    Address(b"\x01" * 20),
    Address(b"\x02" * 20),
    31337,
    "http://127.0.0.1:1",
    {name: Address(bytes([place]) * 20) for place, name in enumerate(NAMES, 10)},
    BeaconView("http://127.0.0.1:1", b"\x03" * 96, 2, 1),
    Bps(200),
    "devnet",
    "0",
)


class Says:
    """A coordinator with an adjustable answer to GET /v1/info."""

    def __init__(self) -> None:
        self.info, self.url, self.is_away = FIRST, "", False

    async def answer(self, _request: web.Request) -> web.Response:
        return (
            web.Response(status=503)
            if self.is_away
            else web.Response(body=canonical.encode(self.info))
        )


@pytest.fixture
async def coordinator() -> AsyncIterator[Says]:
    says, app = Says(), web.Application()
    app.router.add_get("/v1/info", says.answer)
    async with on_loopback(app) as says.url:
        yield says


async def test_other_contracts_than_at_first_contact_are_refused(
    coordinator: Says, tmp_path: Path
) -> None:
    kept = saved_info_path(tmp_path, coordinator.url)
    async with aiohttp.ClientSession() as session:
        assert await fetch_info(session, coordinator.url, kept) == FIRST
        for other, name in (
            (
                replace(FIRST, contracts=FIRST.contracts | {"Stakes": Address(b"\x66" * 20)}),
                "stakes",
            ),
            (
                replace(FIRST, contracts=FIRST.contracts | {"TestToken": Address(b"\x66" * 20)}),
                "token",
            ),
            (replace(FIRST, chain_id=1), "chain_id"),
            (replace(FIRST, coordinator=Address(b"\x66" * 20)), "coordinator"),
        ):
            coordinator.info = other
            with pytest.raises(Refused, match=f"{name} changed.*remove {kept}"):
                await fetch_info(session, coordinator.url, kept)
        coordinator.info = replace(
            FIRST,
            fee_bps=Bps(100),
            chain_url="http://127.0.0.1:2",
            statement_key=Address(b"\x05" * 20),
        )
        assert await fetch_info(session, coordinator.url, kept) == coordinator.info, (
            "these may change"
        )
        coordinator.is_away = True
        assert await fetch_info(session, coordinator.url, kept) == coordinator.info, (
            "its leases may still run here"
        )


async def test_a_damaged_record_does_not_count_as_first_contact(
    coordinator: Says, tmp_path: Path
) -> None:
    kept = saved_info_path(tmp_path, coordinator.url)
    kept.write_bytes(b"")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(Refused, match=f"{kept} is damaged"):
            await fetch_info(session, coordinator.url, kept)
        kept.unlink()
        coordinator.is_away = True
        with pytest.raises(Unavailable):
            await fetch_info(session, coordinator.url, kept)


@pytest.mark.parametrize("name", ["Stakes", "Escrow", "TestToken"])
def test_a_client_pins_the_contracts_of_its_coordinator(tmp_path: Path, name: str) -> None:
    pins = check_identity(tmp_path / "pins.json", FIRST)
    other = replace(FIRST, contracts=FIRST.contracts | {name: Address(b"\x66" * 20)})
    with pytest.raises(EvidenceError, match=f"{name.removeprefix('Test').lower()} changed"):
        check_identity(tmp_path / "pins.json", other)
    assert check_identity(tmp_path / "pins.json", FIRST) == pins


TRUSTED = Deployment(
    FIRST.chain_id,
    BlockNumber(7),
    FIRST.limits,
    *(FIRST.contracts[name] for name in NAMES),
    FIRST.beacon.public_key,
    Seconds(FIRST.beacon.period),
    FIRST.beacon.genesis_time,
)
LIES = [
    *(
        (name, replace(FIRST, contracts=FIRST.contracts | {name: Address(b"\x66" * 20)}))
        for name in NAMES
    ),
    ("chain", replace(FIRST, chain_id=1)),
    ("limits", replace(FIRST, limits="mainnet")),
    ("beacon", replace(FIRST, beacon=replace(FIRST.beacon, public_key=b"\x04" * 96))),
]


@pytest.mark.parametrize(("name", "lie"), LIES, ids=[name for name, _ in LIES])
async def test_a_trusted_deployment_file_overrules_the_coordinator_at_first_contact(
    coordinator: Says, tmp_path: Path, name: str, lie: InfoView
) -> None:
    file = tmp_path / "from-the-web.json"
    file.write_bytes(deploy.encode(TRUSTED))
    trusted_deployment.keep(tmp_path, trusted_deployment.read(file))
    kept = saved_info_path(tmp_path, coordinator.url)
    async with aiohttp.ClientSession() as session:
        coordinator.info = lie
        with pytest.raises(
            Refused, match=rf"names another {name} than {tmp_path / 'deployment.json'}"
        ):
            await fetch_info(session, coordinator.url, kept, tmp_path)
        with pytest.raises(EvidenceError, match=f"names another {name} than"):
            check_identity(tmp_path / "pins.json", lie)
        assert not kept.exists() and not (tmp_path / "pins.json").exists(), (
            "a liar is not remembered"
        )
        coordinator.info = FIRST
        assert await fetch_info(
            session, coordinator.url, kept, tmp_path
        ) == FIRST and check_identity(tmp_path / "pins.json", FIRST)
        for content in (b"{", deploy.encode(replace(TRUSTED, chain_id=9))):
            (tmp_path / "deployment.json").write_bytes(content)
            with pytest.raises(Refused, match="cannot be used.*that you trust"):
                await fetch_info(session, coordinator.url, kept, tmp_path)


def test_a_deployment_file_must_have_the_hash_that_is_typed_after_it(tmp_path: Path) -> None:
    file = tmp_path / "market.json"
    file.write_bytes(deploy.encode(TRUSTED))
    wanted = deploy.digest(TRUSTED)
    for text in (str(file), f"{file}#{wanted}", f"{file}#0x{wanted.upper()}"):
        assert trusted_deployment.read(Path(text)) == TRUSTED
    other = deploy.digest(replace(TRUSTED, chain_id=9))
    with pytest.raises(Refused, match=f"has the hash {wanted}, not {other}: get the file"):
        trusted_deployment.read(Path(f"{file}#{other}"))
    for words in (
        ("coordinator", "init", "--home"),
        ("node", "init", "--coordinator", "http://127.0.0.1:9", "--home"),
    ):
        home = tmp_path / words[0]
        code, text = typed(*words, str(home), "--deployment", f"{file}#{other}")
        assert code in (2, 3) and "get the file and its hash" in text, text
        assert not home.exists()


def test_a_wrong_deployment_file_makes_no_profile(tmp_path: Path) -> None:
    """Both programs say what is wrong with the file and make no keys. A devnet.json contains a
    deployment too.
    """
    devnet, home = tmp_path / "devnet.json", tmp_path / "home"
    devnet.write_text(json.dumps({"deployment": canonical.to_json(TRUSTED), "chainUrl": ""}))
    password = password_file(tmp_path)

    def init(deployment: Path, more: str = "") -> tuple[int, str]:
        market = f"--limits devnet --coordinator http://127.0.0.1:1 --deployment {deployment}"
        flags = f"--home {home} --password-file {password} {more}"
        made = CliRunner().invoke(node, f"init {market} {flags}".split())
        return made.exit_code, made.output

    assert trusted_deployment.read(devnet) == TRUSTED
    for content, told in (
        ("{}", "describes no deployment"),
        ("[", "describes no deployment"),
        (None, "No such file"),
    ):
        bad = tmp_path / "bad.json"
        bad.unlink(missing_ok=True)
        if content is not None:
            bad.write_text(content)
        code, said = init(bad)
        assert code and told in said and not home.exists()
    assert init(devnet, "--fee-cap-gwei 70")[0] == 0
    assert deploy.decode((home / "deployment.json").read_bytes()) == TRUSTED
    assert settings.read(home).fee_cap_gwei == 70


@pytest.mark.parametrize(
    "words",
    [["init"], ["node", "init", "--coordinator", "http://127.0.0.1:1"]],
    ids=["client", "provider"],
)
def test_the_trusted_file_is_written_before_the_profile(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a full disk or a kill between the two left a profile that trusted any coordinator."""
    file, home = tmp_path / "from-the-web.json", tmp_path / "home"
    file.write_bytes(deploy.encode(TRUSTED))
    options = ["--home", str(home), "--password-file", str(password_file(tmp_path))]
    before, after = ([], options) if words[0] == "node" else (options, [])
    command = [*before, *words, *after, "--limits", "devnet", "--deployment", str(file)]
    replaced = os.replace

    def replace_others(source: Path, target: Path) -> None:
        if target.name == "deployment.json":
            raise OSError(errno.ENOSPC, "no space left", str(target))
        replaced(source, target)

    with monkeypatch.context() as full:
        full.setattr(os, "replace", replace_others)
        assert run_main(command)
    assert [path.name for path in home.glob("*.json")] == [], "nothing that works without it"
    assert (
        run_main(command) == 0 and deploy.decode((home / "deployment.json").read_bytes()) == TRUSTED
    )


async def test_an_owner_signs_only_for_the_markets_chain(tmp_path: Path) -> None:
    """The coordinator names the chain node, and the node its chain. Something signed for another
    chain could be sent there.
    """
    asked: list[str] = []
    hash_, number = "0x" + "11" * 32, "0x" + "0" * 64
    block = {
        "number": "0x5",
        "hash": hash_,
        "parentHash": hash_,
        "timestamp": "0x1",
        "baseFeePerGas": "0x1",
    }
    answers: dict[str, object] = {
        "eth_chainId": "0x1",
        "eth_call": number,
        "eth_getBlockByNumber": block,
        "eth_getBalance": hex(10**20),
        "eth_getCode": "0x00",
        "eth_getTransactionCount": "0x0",
        "eth_maxPriorityFeePerGas": "0x1",
        "eth_feeHistory": {},
        "eth_estimateGas": "0x5208",
    }

    async def node_of_another_chain(request: web.Request) -> web.Response:
        call = await request.json()
        asked.append(call["method"])
        return web.json_response(
            {"jsonrpc": "2.0", "id": call["id"], "result": answers.get(call["method"])}
        )

    app, owner = web.Application(), KeySigner(b"\x07" * 32)
    app.router.add_post("/", node_of_another_chain)
    keys = ProviderKeys(
        owner.address,
        owner.address,
        KeySigner(b"\x08" * 32),
        PeerKey(bytes(32)),
        Hash32(bytes(32)),
        owner,
    )
    async with on_loopback(app) as url, aiohttp.ClientSession() as session:
        client = ChainClient(Rpc(url, session))
        sender = Sender(
            client, owner, tmp_path / "owner.sqlite", SystemClock(), chain_id=TRUSTED.chain_id
        )
        with pytest.raises(Refused, match="serves chain 1, the contracts are on chain 31337"):
            async with asyncio.timeout(20):
                await register(
                    client,
                    Contracts.of(TRUSTED),
                    keys,
                    sender,
                    {Hash32(b"\x09" * 32): 1},
                    "http://127.0.0.1:1",
                )
        sender.close()
    assert "eth_sendRawTransaction" not in asked and not (tmp_path / "owner.sqlite").exists()
