"""Tests the whole coordinator on a real chain, beacon, contracts and sockets, without providers."""

import pytest

from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts, digest
from quorate_coordinator.service import Service
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.units import Amount
from quorate_runtime.chain import ChainClient, Rpc
from support.markets.coordinator_stage import Stage, running, until


async def test_a_coordinator_registers_follows_the_chain_and_survives_a_restart(
    stage: Stage,
) -> None:
    contracts = Contracts.of(stage.deployment)
    chain = ChainClient(Rpc(stage.chain_url, stage.session))

    async def account(service: Service) -> dict[str, object]:
        path = f"accounts/0x{stage.client.address.hex()}"
        return (await stage.get(service.url, path, stage.client))[1]

    async with running(stage.service()) as service:
        bond = await ask(chain, contracts.stakes.bond_of(stage.keys.account.address))
        assert bond == DEVNET.coordinator_bond
        await stage.fund(stage.client, Amount(80 * USD))
        await until(lambda: account(service), lambda view: view["locked"] == 80 * USD)
        assert (await stage.get(service.url, "info"))[1]["chainId"] == stage.deployment.chain_id
    async with running(stage.service()) as service:
        assert (await account(service))["locked"] == 80 * USD, "nothing journaled is lost"


@pytest.mark.rule("3.56")
async def test_coordinator_tells_from_which_address_it_sees_a_request(stage: Stage) -> None:
    async with running(stage.service()) as service:
        assert (await stage.get(service.url, "observed"))[1] == {"address": "127.0.0.1"}


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


async def test_the_front_page_answers_people_and_programs(stage: Stage) -> None:
    async with running(stage.service()) as service:
        async with stage.session.get(service.url + "/", headers={"Accept": "text/html"}) as page:
            text = await page.text()
            assert page.status == 200 and page.content_type == "text/html"
            assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert f"0x{stage.keys.account.address.hex()}" in text
        assert f"0x{stage.deployment.escrow.hex()}" in text and digest(stage.deployment) in text
        async with stage.session.get(service.url + "/") as answer:
            found = await answer.json()
        assert found["deploymentHash"] == digest(stage.deployment) and found["pools"] == []
        assert found["info"]["chainId"] == stage.deployment.chain_id
