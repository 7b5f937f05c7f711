"""Coordinator and provider over libp2p: real chain, sockets, keys and hosts."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quorate_contracts.announced_coordinators import announced_coordinators
from quorate_contracts.deploy import Contracts
from quorate_coordinator.market import p2p_service
from quorate_coordinator.service import Service
from quorate_devnet.chain.accounts import dev_account
from quorate_node.base.config import Config, ExecutorKind, TransportChoice
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.daemon import ProviderDaemon
from quorate_node.executors.noop_executor import NoopExecutor
from quorate_node.status.status import read_status
from quorate_protocol.codec import canonical
from quorate_protocol.codec.peer_ids import peer_id, peer_key
from quorate_protocol.limits import USD
from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.classes import CPUS
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.key_binding import sign_binding
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.offer_gossip import OfferGossip
from quorate_protocol.messages.signed import KeyBinding
from quorate_protocol.messages.views import InfoView, OfferView
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Amount, Seconds, Sequence
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import BoxKey, KeySigner, PeerKey
from quorate_runtime.p2p.binding_hello import Greeter
from quorate_runtime.p2p.host.host_config import HostConfig, PeerAddress, offers_topic
from quorate_runtime.p2p.libp2p_dialer import Libp2pDialer
from quorate_runtime.p2p.libp2p_gossip import Libp2pGossip
from quorate_runtime.p2p.p2p_node import P2pNode
from support.markets.coordinator_stage import Stage, running, until
from support.offers import a_slot, an_offer
from support.p2p.p2p_nodes import LOOPBACK, nodes_up

OWNER, OPERATOR, STRANGER = (KeySigner(dev_account(number)) for number in (10, 11, 12))
PEER, BOX = PeerKey(b"\x05" * 32), BoxKey(b"\x06" * 32)
WITHIN = Seconds(10)


def a_service(stage: Stage, listen: str = LOOPBACK[0], port: int = 0) -> Service:
    config = replace(stage.service().config, p2p_listen=listen, port=port)
    return Service(config, stage.keys)


async def info_of(stage: Stage, service: Service) -> InfoView:
    async with stage.session.get(f"{service.url}/v1/info") as response:
        return canonical.decode(InfoView, await response.read())


async def offers_of(stage: Stage, service: Service) -> list[OfferView]:
    async with stage.session.get(f"{service.url}/v1/offers") as response:
        tree = canonical.parse(await response.read(), 1 << 20)
    return [canonical.from_json(OfferView, item) for item in tree["offers"]]  # type: ignore[index,call-overload,union-attr]


async def stake(stage: Stage) -> None:
    """Registers the owner with the operator key and one stake slot."""
    stage.home.mkdir(exist_ok=True)
    contracts, money = Contracts.of(stage.deployment), Amount(1_000 * USD)
    await stage.register(OWNER, 1, OPERATOR.address)
    await stage.send(
        OWNER,
        contracts.token.mint(OWNER.address, money),
        contracts.token.approve(contracts.stakes.address, money),
        contracts.stakes.open_slots(CPUS.id(), 1),
    )


@asynccontextmanager
async def node_with_topic(stage: Stage, seed: bytes) -> AsyncIterator[P2pNode]:
    topic = offers_topic(stage.deployment.domain())
    node = P2pNode(HostConfig(seed, (), topic=topic), SystemClock())
    async with nodes_up(node):
        yield node


def address_of(info: InfoView) -> PeerAddress:
    return PeerAddress(peer_key(info.peer_id), info.addresses)


# -------------------------------------------------------------------------------------- coordinator


@pytest.mark.rule("3.55")
async def test_coordinator_shows_its_peer_id_and_where_to_dial(stage: Stage) -> None:
    async with running(stage.service()) as plain:
        assert (await info_of(stage, plain)).addresses == ()
    async with running(a_service(stage)) as service:
        info = await info_of(stage, service)
        assert info.peer_id == peer_id(stage.keys.peer.public)
        [address] = info.addresses
        assert address.startswith("/ip4/127.0.0.1/tcp/") and not address.endswith("/0")
    taken = a_service(stage, listen=f"/ip4/127.0.0.1/tcp/{stage.chain_url.rpartition(':')[2]}")
    with pytest.raises(BaseExceptionGroup) as group:
        async with running(taken):
            pass
    [problem] = _leaves(group.value)
    assert isinstance(problem, Unavailable) and "cannot listen on /ip4" in str(problem)


@pytest.mark.rule("3.53")
async def test_coordinator_announces_on_chain_where_to_dial_as_soon_as_it_listens(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p2p_service, "LOOK_SECONDS", 3600.0)  # no second look helps
    async with running(a_service(stage)) as service:
        info = await info_of(stage, service)
        chain = ChainClient(Rpc(stage.chain_url, stage.session))
        contracts = Contracts.of(stage.deployment)
        found = await until(lambda: announced_coordinators(chain, contracts), bool)
        assert [(one.account, one.peer_key, one.addresses) for one in found] == [
            (stage.coordinator, stage.keys.peer.public, info.addresses)
        ]


def _leaves(group: BaseException) -> list[BaseException]:
    if not isinstance(group, BaseExceptionGroup):
        return [group]
    return [leaf for error in group.exceptions for leaf in _leaves(error)]


@pytest.mark.rule("3.51")
async def test_coordinator_refuses_a_hello_that_lies_about_account_or_key(stage: Stage) -> None:
    await stake(stage)
    domain, account = stage.deployment.domain(), stage.keys.account.address
    async with running(a_service(stage)) as service, node_with_topic(stage, PEER.seed) as node:
        server = address_of(await info_of(stage, service))

        def dialer(owner: Address, signer: KeySigner, peer: PeerKey = PEER) -> Libp2pDialer:
            binding = KeyBinding(owner, peer.public, BOX.public, Sequence(1))
            signed = sign_binding(domain, binding, signer.address, signer.sign, peer.sign)

            async def anybody(_: Address, key: Address) -> bool:
                return key == stage.keys.statement.address

            async def handle(_: str, frame: bytes) -> bytes:
                return frame

            greeter = Greeter(domain, lambda: signed, anybody)
            return Libp2pDialer(node, server, account, greeter, handle, SystemClock())

        lies = (
            (dialer(OWNER.address, STRANGER), Code.WRONG_SIGNER),
            (dialer(STRANGER.address, STRANGER), Code.WRONG_SIGNER),
            (dialer(OWNER.address, OPERATOR, PeerKey(b"\x07" * 32)), Code.WRONG_SIGNER),
        )
        for lie, code in lies:
            with pytest.raises(Refused) as refused:
                try:
                    await lie._connect()
                except ConnectionError:  # the connection of the lie before was still ending
                    await lie._connect()
            assert refused.value.code is code
        honest = dialer(OWNER.address, OPERATOR)
        connecting = asyncio.create_task(honest.run())

        async def is_connected() -> bool:
            return bool(honest.connected())

        await until(is_connected, bool)
        connecting.cancel()


# ------------------------------------------------------------------------------------------- gossip


@pytest.mark.rule("3.54")
async def test_gossiped_offer_of_an_unconnected_provider_is_in_the_book_and_not_alive(
    stage: Stage,
) -> None:
    await stake(stage)
    async with running(a_service(stage)) as service, node_with_topic(stage, b"\x09" * 32) as node:
        slot = a_slot(CPUS, 100_000)
        offer = an_offer(OWNER.address, 1, int(time.time()) + 600, (slot,))
        signed = seal(stage.deployment.domain(), offer.signed(), OPERATOR.sign)
        message = offer_gossip.encode(OfferGossip(OfferEnvelope(offer, signed)))
        await node.connect(address_of(await info_of(stage, service)), WITHIN)
        gossip = Libp2pGossip(node)

        async def book() -> list[OfferView]:
            try:
                await gossip.publish(message)  # until a neighbour listens, and the stake is seen
            except Unavailable:
                pass
            return await offers_of(stage, service)

        [view] = await until(book, bool)
        assert view.offer == offer and not view.is_alive


# ----------------------------------------------------------------------------------------- provider


def a_daemon(
    stage: Stage, service: Service, transport: TransportChoice = TransportChoice.AUTO
) -> ProviderDaemon:
    home = stage.home.parent / "provider"
    config = Config(
        home=home,
        coordinators=(service.url,),
        executor=ExecutorKind.NOOP,
        is_devnet=True,
        listen_port=0,
        cpu_millis=1000,
        transport=transport,
    )
    keys = ProviderKeys(OWNER.address, OWNER.address, OPERATOR, PEER, BOX.public, OWNER)
    return ProviderDaemon(config, keys, NoopExecutor(home / "noop", SystemClock(), 0))


@asynccontextmanager
async def daemon_up(daemon: ProviderDaemon) -> AsyncIterator[None]:
    task = asyncio.create_task(daemon.run())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def transport_of(home: Path) -> str:
    """What the provider's status says."""
    status = read_status(home / "status.json")
    return "".join(status.transports.values()) if status else ""


async def test_provider_uses_libp2p_and_falls_back_to_websocket(stage: Stage) -> None:
    await stake(stage)
    async with running(a_service(stage)) as service:
        daemon, port = a_daemon(stage, service), int(service.url.rpartition(":")[2])
        [listen] = (await info_of(stage, service)).addresses

        async def transport() -> str:
            return transport_of(daemon.config.home)

        async def alive() -> bool:
            return any(view.is_alive for view in await offers_of(stage, service))

        connection = daemon_up(daemon)
        await connection.__aenter__()
        await until(transport, lambda name: name == "libp2p")
        await until(alive, bool)
    try:
        async with running(a_service(stage, "", port)) as service:
            await until(transport, lambda name: name == "websocket")
            await until(alive, bool)
        async with running(a_service(stage, listen, port)) as service:
            await until(transport, lambda name: name == "libp2p")
    finally:
        await connection.__aexit__(None, None, None)


@pytest.mark.parametrize("transport", [TransportChoice.WEBSOCKET, TransportChoice.LIBP2P])
async def test_owner_may_insist_on_one_transport(stage: Stage, transport: TransportChoice) -> None:
    await stake(stage)
    async with running(a_service(stage)) as service:
        daemon = a_daemon(stage, service, transport)

        async def shown() -> str:
            return transport_of(daemon.config.home)

        async with daemon_up(daemon):
            await until(shown, lambda name: name == transport.value)


async def test_provider_that_insists_on_libp2p_says_which_coordinator_has_none(
    stage: Stage,
) -> None:
    async with running(stage.service()) as service:
        with pytest.raises(Unavailable, match="transport: no coordinator shows a libp2p address"):
            await a_daemon(stage, service, TransportChoice.LIBP2P).run()
