"""Tests the whole coordinator on a real chain, beacon, contracts and sockets, without providers."""

import pytest

from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts
from quorate_coordinator.service import Service
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import Amount
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.keys.crypto import KeySigner
from support.markets.coordinator_stage import Stage, running, until


async def test_a_coordinator_registers_follows_the_chain_and_survives_a_restart(
    stage: Stage,
) -> None:
    contracts = Contracts.of(stage.deployment)
    chain = ChainClient(Rpc(stage.chain_url, stage.session))

    async def account(service: Service) -> dict[str, object]:
        url = f"{service.url}/v1/accounts/0x{stage.client.address.hex()}"
        async with stage.session.get(
            url, headers=stage.token(stage.client.address, stage.client)
        ) as response:
            return dict(await response.json())

    async with running(stage.service()) as service:
        assert (
            await ask(chain, contracts.stakes.bond_of(stage.keys.account.address))
            == DEVNET.coordinator_bond
        )
        await stage.fund(stage.client, Amount(80 * USD))
        await until(lambda: account(service), lambda view: view["locked"] == 80 * USD)
        async with stage.session.get(f"{service.url}/v1/info") as response:
            assert (await response.json())["chainId"] == stage.deployment.chain_id
    async with running(stage.service()) as service:
        assert (await account(service))["locked"] == 80 * USD, "nothing journaled is lost"


@pytest.mark.rule("3.56")
async def test_coordinator_tells_from_which_address_it_sees_a_request(stage: Stage) -> None:
    async with (
        running(stage.service()) as service,
        stage.session.get(f"{service.url}/v1/observed") as response,
    ):
        assert await response.json() == {"address": "127.0.0.1"}


async def test_strangers_and_nonsense_are_refused_with_a_code(stage: Stage) -> None:
    async with running(stage.service()) as service:
        cases = (
            ("POST", "/v1/orders", b"{}", 400, "malformed"),
            ("POST", "/v1/orders", b"[" * 100_000, 400, "malformed"),
            ("POST", "/v1/orders", b" " * 300_000, 413, "oversize"),
            ("GET", "/v1/runs", None, 401, "bad-signature"),
            ("GET", "/v1/runs/0x00", None, 400, "malformed"),
            ("GET", f"/v1/runs/0x{'00' * 32}", None, 401, "bad-signature"),
            ("POST", "/v1/vouchers", b'{"type":"Order","body":{},"sig":"0x"}', 400, "malformed"),
        )
        for method, path, body, status, code in cases:
            async with stage.session.request(method, service.url + path, data=body) as response:
                assert (response.status, (await response.json())["code"]) == (status, code), path


async def test_uploads_need_an_account_with_money(stage: Stage) -> None:
    async with running(stage.service()) as service:
        stranger = KeySigner(b"\x77" * 32)
        token = stage.token(stranger.address, stranger)
        async with stage.session.put(
            f"{service.url}/v1/content", data=b"hello", headers=token
        ) as response:
            assert (response.status, (await response.json())["code"]) == (403, "not-registered")
        async with stage.session.get(
            f"{service.url}/v1/content/{document_cid(b'absent')}"
        ) as response:
            assert response.status == 404


async def test_a_second_coordinator_on_one_folder_is_refused(stage: Stage) -> None:
    async with running(stage.service()):
        with pytest.raises(BaseException, match="in use|lock|another|already"):
            async with running(stage.service()):
                pass
