"""The coordinator as a process-sized whole: real chain, real beacon, real contracts, real sockets; only providers are missing."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator_stage import USD, Stage, deployed_stage, running, until
from quorate_contracts.deploy import Contracts
from quorate_coordinator.adapters.registration import ask
from quorate_coordinator.service import Service
from quorate_protocol.bearer import Bearer, make_token
from quorate_protocol.cids import document_cid
from quorate_protocol.limits import DEVNET
from quorate_protocol.units import Amount, UnixSeconds
from quorate_runtime.chain import ChainClient, Rpc, Sender
from quorate_runtime.chain.sender import Outgoing
from quorate_runtime.clock import SystemClock
from quorate_runtime.crypto import KeySigner


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with deployed_stage(tmp_path) as made:
        yield made


async def test_registers_follows_the_chain_and_survives_a_restart(stage: Stage) -> None:
    contracts = Contracts.of(stage.deployment)
    chain = ChainClient(Rpc(stage.chain_url, stage.session))

    async def account(service: Service) -> dict[str, object]:
        bearer = Bearer(stage.client.address, stage.client.address, UnixSeconds(int(time.time()) + 60))
        token = make_token(bearer, stage.deployment.chain_id, stage.keys.account.address, stage.client.sign)
        url = f"{service.url}/v1/accounts/0x{stage.client.address.hex()}"
        async with stage.session.get(url, headers={"Authorization": token}) as response:
            return dict(await response.json())

    async with running(stage.service()) as service:
        assert await ask(chain, contracts.stakes.bond_of(stage.keys.account.address)) == DEVNET.coordinator_bond
        sender = Sender(chain, stage.client, stage.home / "client.sqlite", SystemClock())
        calls = (
            contracts.token.approve(stage.deployment.escrow),
            contracts.escrow.deposit(Amount(100 * USD)),
            contracts.escrow.allocate(stage.keys.account.address, Amount(80 * USD)),
        )
        orders = [Outgoing(str(i), call.to, call.data, gas=call.gas) for i, call in enumerate(calls)]
        await sender.send_in_order(orders, deadline_seconds=30)
        sender.close()
        await until(lambda: account(service), lambda view: view["allocation"] == 80 * USD)
        async with stage.session.get(f"{service.url}/v1/info") as response:
            assert (await response.json())["chainId"] == stage.deployment.chain_id
    async with running(stage.service()) as service:
        assert (await account(service))["allocation"] == 80 * USD, "nothing journaled is lost"


async def test_strangers_and_nonsense_are_refused_by_name(stage: Stage) -> None:
    async with running(stage.service()) as service:
        cases = (
            ("POST", "/v1/orders", b"{}", 400, "malformed"),
            ("POST", "/v1/orders", b"[" * 100_000, 400, "malformed"),
            ("POST", "/v1/orders", b" " * 300_000, 413, "oversize"),
            ("GET", "/v1/runs", None, 401, "bad-signature"),
            ("GET", "/v1/runs/0x00", None, 400, "malformed"),
            ("GET", f"/v1/runs/0x{'00' * 32}", None, 404, "unknown"),
            ("GET", "/v1/epochs/99/proofs/0x" + "00" * 20, None, 404, "unknown"),
            ("POST", "/v1/vouchers", b'{"type":"Order","body":{},"sig":"0x"}', 400, "malformed"),
        )
        for method, path, body, status, code in cases:
            async with stage.session.request(method, service.url + path, data=body) as response:
                assert (response.status, (await response.json())["code"]) == (status, code), path


async def test_uploads_need_an_account_with_money(stage: Stage) -> None:
    async with running(stage.service()) as service:
        stranger = KeySigner(b"\x77" * 32)
        bearer = Bearer(stranger.address, stranger.address, UnixSeconds(int(time.time()) + 60))
        token = make_token(bearer, stage.deployment.chain_id, stage.keys.account.address, stranger.sign)
        async with stage.session.put(f"{service.url}/v1/content", data=b"hello", headers={"Authorization": token}) as response:
            assert (response.status, (await response.json())["code"]) == (403, "not-registered")
        async with stage.session.get(f"{service.url}/v1/content/{document_cid(b'absent')}") as response:
            assert response.status == 404


async def test_a_second_coordinator_on_one_folder_is_refused(stage: Stage) -> None:
    async with running(stage.service()):
        with pytest.raises(BaseException, match="in use|lock|another|already"):
            async with running(stage.service()):
                pass
