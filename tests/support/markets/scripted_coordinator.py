"""A coordinator that sends what the test says, when the test says it.

Sockets, signatures and the chain behind it are real.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import aiohttp
from aiohttp import web

from quorate_content.store.content_store import ContentStore
from quorate_content.transfer.sealed import check_sealed
from quorate_content.transfer.staging_routes import add_staging_routes
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.generated.contract_calls import Call
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.chain.server import ChainConfig, running_chain
from quorate_node.base.config import Config, ExecutorKind
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.daemon import ProviderDaemon
from quorate_node.executors.noop_executor import NoopExecutor
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages import frames as frames_module
from quorate_protocol.messages.bearer import read_token
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.ports import BeaconInfo, Executor
from quorate_protocol.messages.signed import (
    Assignment,
    Commit,
    CommitEntry,
    CommitReceipt,
    CommitSet,
    Voucher,
)
from quorate_protocol.messages.views import BeaconView, InfoView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    Bps,
    Hash32,
    Price,
    PriceTier,
    Seconds,
    UnixSeconds,
)
from quorate_protocol.values import replace
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys import bls
from quorate_runtime.keys.crypto import BoxKey, KeySigner, PeerKey, recover
from quorate_runtime.peers.websocket_peers import WebSocketPeers
from support.chain.sent_in_order import deploy, send_calls
from support.http_server import on_loopback
from support.messages import a_spec, blank

T = TypeVar("T")
JOB = Hash32(b"\x44" * 32)
SPEC = replace(
    a_spec("job"),
    image="docker.io/library/python@sha256:" + "ab" * 32,
    image_bytes=0,
    argv=("true",),
    working_dir="/",
)
AHEAD_MAX = 35  # seconds
OWNER, OPERATOR, COORDINATOR, STATEMENT = (KeySigner(dev_account(i)) for i in (10, 11, 12, 13))


async def until(read: Callable[[], T | None], seconds: float = 20.0) -> T:
    """Polls `read` until it returns something; returns that value."""
    limit = time.monotonic() + seconds
    while (found := read()) is None:
        assert time.monotonic() < limit, "it did not happen in time"
        await asyncio.sleep(0.02)
    return found


@dataclass
class ScriptedCoordinator:
    """Records every frame. It answers Ok unless `refuse` names a code for the frame's type."""

    deployment: Deployment
    chain_url: str
    store: ContentStore
    frames: list[frames_module.Frame] = field(default_factory=list)
    refuse: dict[type, Code] = field(default_factory=dict)
    observed: str = "127.0.0.1"  # where it says that it sees the provider
    operator: Address = OPERATOR.address  # the key that it takes for the provider's
    account: Address = COORDINATOR.address
    rule: Callable[[frames_module.Frame], Awaitable[None]] | None = (
        None  # called with each frame; the coordinator refuses a frame for which it raises
    )
    url: str = ""
    peers: WebSocketPeers | None = None

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator["ScriptedCoordinator"]:
        """Listens until the block ends."""
        self.peers = WebSocketPeers(self.account, self._handle, self._authorize)
        app = web.Application()
        app.add_routes(self.peers.routes())
        app.router.add_get("/v1/info", self._info)
        app.router.add_get("/v1/observed", self._observed)
        add_staging_routes(app, self.store, self._uploader)
        async with on_loopback(app, port=port) as self.url:
            try:
                yield self
            finally:
                await self.peers.close()

    async def send(self, frame: frames_module.Frame) -> None:
        """Sends a frame to the provider. Raises Refused if the provider refuses it."""
        assert self.peers is not None
        await until(lambda: self.peers.connected() or None)  # type: ignore[union-attr]
        answer = await self.peers.request(OWNER.address, frames_module.encode(frame), Seconds(5))
        assert frames_module.decode(answer) == frames_module.Ok()

    def got(self, kind: type[T]) -> list[T]:
        """Returns the received frames of one type, in order."""
        return [frame for frame in self.frames if isinstance(frame, kind)]

    async def first(self, kind: type[T], seconds: float = 20.0) -> T:
        """Waits for a frame of one type; returns the first."""
        return await until(lambda: next(iter(self.got(kind)), None), seconds)

    def assignment(self, spec: JobSpec, number: int, pool: Hash32) -> frames_module.AssignmentSent:
        """Returns a signed assignment, which the provider must accept within five seconds."""
        accept_by = UnixSeconds(int(time.time()) + DEVNET.accept_within)
        message = Assignment(
            Hash32(number.to_bytes(32, "big")),
            self.account,
            OWNER.address,
            spec.digest(),
            pool,
            PriceTier.ON_DEMAND,
            Price(100_000),
            spec.max_duration,
            accept_by,
        )
        return frames_module.AssignmentSent(self.seal(message), spec, (f"{self.url}/v1/content",))

    def seal(self, message: T) -> Envelope[T]:
        """Signs a message by the statement key."""
        return seal(self.deployment.domain(), message, STATEMENT.sign)

    def hash(self, message: object) -> Hash32:
        """Returns the message's digest in this deployment."""
        return digest(self.deployment.domain(), message)

    def receipt(self, commit: Commit) -> frames_module.ReceiptSent:
        """Returns the receipt frame for a commit."""
        return frames_module.ReceiptSent(
            self.seal(CommitReceipt(self.hash(commit), UnixSeconds(int(time.time()))))
        )

    def commit_set(self, commit: Commit, age: int = 0) -> frames_module.CommitSetSent:
        """Returns the CommitSet of a batch with only this commit."""
        entry = CommitEntry(commit.assignment_hash, OWNER.address, self.hash(commit))
        closed_at = UnixSeconds(int(time.time()) - age)
        message = blank(
            CommitSet,
            job_id=JOB,
            ordered=(entry,),
            blinds=(ZERO_HASH,),
            beacon_round=commit.beacon_round,
            closed_at=closed_at,
        )
        return frames_module.CommitSetSent(commit.assignment_hash, self.seal(message))

    async def opens(self, commit: Commit, reveal: frames_module.RevealSent) -> None:
        """Asserts that the ciphertext of a commit opens to the revealed result."""
        cid = await self.store.resolve(commit.encrypted_output)
        assert cid is not None, "the ciphertext was uploaded before the commit"
        async with await self.store.lease(cid) as lease:
            check_sealed(lease.path, reveal.reveal.salt, reveal.reveal.output_digest)

    async def _handle(self, sender: str, data: bytes) -> bytes:
        assert sender == "0x" + OWNER.address.hex()
        frame = frames_module.decode(data)
        if type(frame) in self.refuse:
            raise Refused(self.refuse[type(frame)], "by the script")
        if self.rule is not None:
            await self.rule(frame)
        if isinstance(frame, frames_module.CommitSent):
            assert await self.store.resolve(frame.commit.message.encrypted_output) is not None, (
                "upload comes before commit"
            )
        self.frames.append(frame)
        return frames_module.encode(frames_module.Ok())

    async def _authorize(self, account: Address, key: Address) -> bool:
        return account == OWNER.address and key == self.operator

    async def _uploader(self, request: web.Request) -> str:
        now = UnixSeconds(int(time.time()))
        bearer = read_token(
            request.headers["Authorization"], self.deployment.chain_id, self.account, recover, now
        )
        if bearer.key != self.operator:
            raise Refused(Code.WRONG_SIGNER, "another operator key is known")
        return bearer.account.hex()

    async def _info(self, _: web.Request) -> web.Response:
        names = {name: address for address, name in self.deployment.names().items()}
        beacon = BeaconView(
            "http://127.0.0.1:1",
            self.deployment.beacon_key,
            DEVNET.beacon_period,
            self.deployment.beacon_genesis,
        )
        info = InfoView(
            self.account,
            STATEMENT.address,
            self.deployment.chain_id,
            self.chain_url,
            names,
            beacon,
            Bps(200),
            "devnet",
            "0",
        )
        return web.Response(body=canonical.encode(info), content_type="application/json")

    async def _observed(self, _: web.Request) -> web.Response:
        return web.json_response({"address": self.observed})


async def in_phase(daemon: ProviderDaemon, lease: Hash32, kind: type) -> None:
    """Waits until the execution is in a phase of this type."""
    assert daemon.core is not None
    core = daemon.core
    await until(
        lambda: (
            True
            if lease in core.executions and isinstance(core.executions[lease].phase, kind)
            else None
        )
    )


@dataclass
class Stage:
    """Chain, contracts, the keys of a registered coordinator, and a funded owner."""

    chain_url: str
    client: ChainClient
    contracts: Contracts
    coordinator: ScriptedCoordinator
    home: Path

    def keys(self) -> ProviderKeys:
        """The provider's keys."""
        peer, box = PeerKey(b"\x05" * 32), BoxKey(b"\x06" * 32).public
        return ProviderKeys(OWNER.address, OWNER.address, OPERATOR, peer, box, OWNER)

    def daemon(
        self,
        url: str,
        duration_ms: int = 0,
        executor: Executor | None = None,
        stop_on_exit: bool = False,
        keys: ProviderKeys | None = None,
    ) -> ProviderDaemon:
        """Returns a provider with the noop executor. Each call uses the same home folder."""
        config = Config(
            home=self.home,
            coordinators=(url,),
            executor=ExecutorKind.NOOP,
            is_devnet=True,
            listen_port=0,
            cpu_millis=1000,
            stop_on_exit=stop_on_exit,
        )
        return ProviderDaemon(
            config,
            keys or self.keys(),
            executor or NoopExecutor(self.home / "noop", SystemClock(), duration_ms),
        )

    @contextlib.asynccontextmanager
    async def fast(self) -> AsyncIterator[None]:
        """Makes ten blocks a second while the block runs, so that chain time runs ahead."""
        async with _fast(self.client):
            yield

    async def assign(self, daemon: ProviderDaemon, number: int = 1, spec: JobSpec = SPEC) -> Hash32:
        """Sends a new assignment; returns its hash."""
        assert daemon.core is not None
        sent = self.coordinator.assignment(spec, number, daemon.core.terms.slots[0].pool.id())
        await self.coordinator.send(sent)
        return self.coordinator.hash(sent.assignment.message)

    async def open_tab(self, name: str, amount: Amount) -> None:
        """The coordinator deposits into its tab for the provider."""
        escrow, token = self.contracts.escrow, self.contracts.token
        deposit = escrow.deposit(amount, OWNER.address)
        await self.send(COORDINATOR, name, token.approve(escrow.address, amount), deposit)

    def voucher(self, cumulative: Amount) -> frames_module.VoucherSent:
        """Returns the coordinator's voucher for the provider."""
        message = Voucher(COORDINATOR.address, OWNER.address, cumulative)
        return frames_module.VoucherSent(self.coordinator.seal(message))

    async def send(self, key: KeySigner, name: str, *calls: Call) -> None:
        """Sends transactions of one key, in order."""
        file = self.home.parent / f"{key.address.hex()[:8]}-{name}.sqlite"
        await send_calls(self.client, key, file, *calls)


@contextlib.asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Deploys everything on a fresh chain, which takes some seconds."""
    deployer = KeySigner(dev_account(0))
    async with (
        running_chain(ChainConfig(block_seconds=1, control=True)) as chain,
        aiohttp.ClientSession() as session,
    ):
        client = ChainClient(Rpc(chain.url, session))
        async with _fast(client):
            made = await deploy(client, folder, _beacon())
        contracts = Contracts.of(made)
        store = ContentStore(folder / "staging", 1 << 30)
        scripted = ScriptedCoordinator(made, chain.url, store)
        found = Stage(chain.url, client, contracts, scripted, folder / "node")
        async with found.fast():
            mint = (
                contracts.token.mint(OWNER.address, Amount(1000 * USD)),
                contracts.token.mint(COORDINATOR.address, Amount(2000 * USD)),
            )
            await found.send(deployer, "mint", *mint)
            register = contracts.stakes.register_coordinator(STATEMENT.address, COORDINATOR.address)
            await found.send(
                COORDINATOR,
                "coordinator",
                contracts.token.approve(contracts.stakes.address, Amount(1000 * USD)),
                register,
            )
        async with scripted.serving():
            yield found
        await store.close()


def _beacon() -> BeaconInfo:
    key = bls.public_key(bls.keygen(b"node-test-seed-of-32-bytes-long!"))
    return BeaconInfo(key, Seconds(2), int(time.time()) - 100)


@contextlib.asynccontextmanager
async def _fast(client: ChainClient) -> AsyncIterator[None]:
    mining = asyncio.create_task(_mine(client))
    try:
        yield
    finally:
        mining.cancel()


async def _mine(client: ChainClient) -> None:
    """Makes ten blocks a second, and none while chain time is `AHEAD_MAX` ahead of the clock.

    The chain keeps a lead for ever, and a result whose receipt is over a minute ahead stays closed.
    """
    while True:
        if (await client.head()).time < time.time() + AHEAD_MAX:
            await client.rpc.request("evm_mine")
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def running(market: Stage, daemon: ProviderDaemon) -> AsyncIterator[ProviderDaemon]:
    """Runs the daemon until the block ends, then stops it as SIGTERM would."""
    task = asyncio.create_task(daemon.run())
    try:
        async with market.fast():
            await until(lambda: True if daemon.is_on_offer.is_set() or task.done() else None, 40)
        if task.done():
            await task
        yield daemon
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
