"""Sets up a devnet in a few blocks: deploys the contracts, and registers, stakes, bonds and
funds all accounts. Also funds accounts that join later, and deploys alone, for a market of separate
machines or containers.

The coordinator uses well-known development accounts, which hold coins from the first block. Keys of
providers and clients are fresh, so that two devnets never share an account.
"""

import asyncio
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp

from quorate_contracts import deploy
from quorate_contracts.chain_check import check_machine
from quorate_contracts.deploy import Contracts, Deployment
from quorate_contracts.encodings import OPEN_MAX
from quorate_contracts.generated.token import Token
from quorate_devnet.chain.accounts import dev_account
from quorate_devnet.market.bulk_sender import BulkSender
from quorate_protocol.codec import canonical
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages.ports import BeaconInfo, Signer
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, BlockNumber, Hash32
from quorate_runtime.chain import ChainClient, Rpc
from quorate_runtime.files import PUBLIC_MODE, write_atomic
from quorate_runtime.http.beacon_client import fetch_info
from quorate_runtime.keys.crypto import KeySigner

DEPLOYER, ACCOUNT, POSTING = 0, 1, 2
FIRST_PAYOUT = 128  # payout addresses only receive, so they need no coins
COINS = 10**20  # wei that each fresh key gets if it sends transactions
CAPITAL = Amount(5_000 * USD)  # of the coordinator, for guarantees and payrolls
DAY_LIMIT = Amount(1_000_000 * USD)  # of its posting key
MINED_SECONDS = 30.0
POLL_SECONDS = 0.1


def payout_address(index: int) -> Address:
    return KeySigner(dev_account(FIRST_PAYOUT + index)).address


@dataclass(frozen=True, slots=True)
class JoiningProvider:
    """A provider that the setup registers and stakes: its keys, its host, and its slots."""

    owner: Signer
    operator: Address
    payout: Address
    peer_public: Hash32
    box_public: Hash32
    host: str
    pool: Hash32
    slots: int


@dataclass(frozen=True, slots=True)
class Funds:
    """The money of coordinator and clients."""

    account: Signer  # the coordinator's
    statement: Address
    posting: Signer
    accusations: Amount  # the posting key's balance in Escrow, which pays juries
    clients: Sequence[Signer]
    deposit: Amount


async def begin(
    client: ChainClient,
    chain_id: int,
    beacon: BeaconInfo,
    providers: Sequence[JoiningProvider],
    funds: Funds,
) -> Deployment:
    """Sends all transactions and waits until they are mined.

    Raises Unavailable if one reverts or they take too long, Refused if the chain lacks EIP-2537.
    """
    await check_machine(client)
    deployer = BulkSender(client, chain_id, KeySigner(dev_account(DEPLOYER)))
    plan = deploy.plan(
        deployer.signer.address, 0, chain_id, BlockNumber(0), DEVNET, beacon, faucet=True
    )
    for wave in deploy.waves(plan.creations):
        for creation in wave:
            await deployer.create(creation.name, creation.data, creation.gas)
        await mined([deployer])
    fresh = [
        *(each.address for each in funds.clients),
        *(key for each in providers for key in (each.owner.address, each.operator)),
    ]
    for address in fresh:
        await deployer.pay(address, COINS)
    contracts = Contracts.of(plan.deployment)
    wallets = [
        deployer,
        *(BulkSender(client, chain_id, signer) for signer in (funds.account, funds.posting)),
    ]
    await _coordinator(wallets[1], contracts, funds)
    await _deposit(wallets[2], contracts, funds.accusations, ZERO_ADDRESS)
    await mined(wallets)
    owners = [BulkSender(client, chain_id, each.owner) for each in providers]
    for wallet, joining in zip(owners, providers, strict=True):
        await _provider(wallet, contracts, joining)
    clients = [BulkSender(client, chain_id, signer) for signer in funds.clients]
    for wallet in clients:
        await _client(wallet, contracts, funds)
    await mined([*owners, *clients])
    return await deploy.with_genesis(plan.deployment, client)


async def _coordinator(wallet: BulkSender, contracts: Contracts, funds: Funds) -> None:
    bond = contracts.deployment.constants().coordinator_bond
    await wallet.call("bond", contracts.token.mint(funds.account.address, bond))
    await wallet.call("bond's approval", contracts.token.approve(contracts.stakes.address, bond))
    await wallet.call(
        "registration",
        contracts.stakes.register_coordinator(funds.statement, funds.posting.address),
    )
    await _deposit(wallet, contracts, CAPITAL, ZERO_ADDRESS)
    await wallet.call("limits", contracts.escrow.set_limits(DAY_LIMIT, DAY_LIMIT))


async def _provider(wallet: BulkSender, contracts: Contracts, joining: JoiningProvider) -> None:
    stakes, limits = contracts.stakes, contracts.deployment.constants()
    stake = Amount(joining.slots * limits.slot_stake)
    await wallet.call(
        "tokens", contracts.token.mint(joining.owner.address, Amount(stake + 100 * USD))
    )
    await wallet.call("approval", contracts.token.approve(stakes.address, stake))
    keys = (joining.operator, joining.payout, joining.peer_public, joining.box_public)
    await wallet.call("registration", stakes.register(*keys, network_of(joining.host)))
    assert joining.slots <= OPEN_MAX, "one transaction opens all slots"
    await wallet.call("slots", stakes.open_slots(joining.pool, joining.slots))


async def _client(wallet: BulkSender, contracts: Contracts, funds: Funds) -> None:
    gift = contracts.token.mint(wallet.signer.address, Amount(100 * USD))
    await wallet.call("spending money", gift)
    await _deposit(wallet, contracts, funds.deposit, funds.account.address)


async def _deposit(
    wallet: BulkSender, contracts: Contracts, amount: Amount, payee: Address
) -> None:
    """Mints tokens into the account's balance, or into its tab for a payee if one is named."""
    escrow = contracts.escrow
    await wallet.call("tokens", contracts.token.mint(wallet.signer.address, amount))
    await wallet.call("approval", contracts.token.approve(escrow.address, amount))
    await wallet.call("deposit", escrow.deposit(amount, payee))


async def mined(wallets: Sequence[BulkSender]) -> None:
    """Waits until all transactions are in a block.

    Raises Unavailable if this takes too long or one reverted.
    """
    limit = asyncio.get_running_loop().time() + MINED_SECONDS
    for wallet in wallets:
        while not await wallet.check():
            if asyncio.get_running_loop().time() > limit:
                raise Unavailable(
                    f"the chain did not mine {next(iter(wallet.sent))} within {MINED_SECONDS:g} s"
                )
            await asyncio.sleep(POLL_SECONDS)


def network_of(host: str) -> Hash32:
    packed = ip_address(host).packed
    assert len(packed) == 4, "a devnet lives on 127.0.0.0/8"
    return Hash32((b"\x04" + packed[:3]).ljust(32, b"\0"))


GIVER = 3  # a development account without another use


async def give(facts: dict[str, Any], accounts: Sequence[str], usd: int) -> list[Address]:
    """Sends to each account, waits until the transactions are mined, and returns the addresses.

    `facts` is devnet.json. Raises ValueError for a text that is neither address nor folder.
    """
    wanted = [address for text in accounts for address in _addresses(text)]
    deployment = canonical.from_json(Deployment, facts["deployment"])
    async with aiohttp.ClientSession() as session:
        client, signer = ChainClient(Rpc(facts["chainUrl"], session)), KeySigner(dev_account(GIVER))
        wallet = BulkSender(
            client, deployment.chain_id, signer, await client.nonce(signer.address, "pending")
        )
        for account in wanted:
            await wallet.pay(account, COINS)
            await wallet.call(
                f"dollars for 0x{account.hex()}",
                Token(deployment.token).mint(account, Amount(usd * USD)),
            )
        await mined([wallet])
    return wanted


def _addresses(text: str) -> list[Address]:
    """Returns an address, or those of the keys in a program's folder that need money: an owner's, a
    client's, a coordinator's two.
    """
    keys = Path(text) / "keys"
    if not keys.is_dir():
        if not text.startswith("0x") and len(text) != 40:
            home = shlex.quote(text)
            raise ValueError(
                f"there is no provider, coordinator or client in {text}: make one first, such as "
                f"with `quorate node init --home {home} --devnet devnet.json`"
            )
        return [_address(text)]
    paths = [
        path for name in ("owner", "account", "posting") if (path := keys / f"{name}.json").exists()
    ]
    if not paths:
        raise ValueError(f"{keys} holds no key that needs money; name the address")
    return [_address(json.loads(path.read_text())["address"]) for path in paths]


def _address(text: str) -> Address:
    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        value = b""  # not re-raised: the length is wrong then, and refused below
    if len(value) != 20:
        raise ValueError(
            f"{text[:60]!r} is neither an address (0x and 40 hex digits) nor the folder of a "
            f"provider, coordinator or client"
        )
    return Address(value)


FILE_BYTES_MAX = 1 << 20


async def deploy_once(chain_url: str, beacon_url: str, path: Path) -> Deployment:
    """Deploys the contracts, then writes `path` (a devnet.json without accounts).

    It keeps an existing file if its contracts are on the chain. Raises Unavailable if chain or
    beacon do not answer, or the chain lacks the contracts of the file. Raises Refused if the chain
    lacks EIP-2537.
    """
    known = _read(path)
    async with aiohttp.ClientSession() as session:
        client = ChainClient(Rpc(chain_url, session))
        if known is not None:
            return await _deployment_if_on_chain(client, known, path)
        await check_machine(client)
        info = await fetch_info(beacon_url, session)
        wallet = BulkSender(client, await client.chain_id(), KeySigner(dev_account(DEPLOYER)))
        plan = deploy.plan(
            wallet.signer.address, 0, wallet.chain_id, BlockNumber(0), DEVNET, info, faucet=True
        )
        for wave in deploy.waves(plan.creations):
            for creation in wave:
                await wallet.create(creation.name, creation.data, creation.gas)
            await mined([wallet])
        made = await deploy.with_genesis(plan.deployment, client)
    facts = {"chainUrl": chain_url, "beaconUrl": beacon_url, "deployment": canonical.to_json(made)}
    text = json.dumps(facts, indent=2, sort_keys=True) + "\n"
    write_atomic(path, text.encode(), PUBLIC_MODE)
    return made


def _read(path: Path) -> Deployment | None:
    if not path.exists():
        return None
    tree = canonical.parse(path.read_bytes(), FILE_BYTES_MAX)
    assert isinstance(tree, dict), "we wrote it"
    made: Deployment = canonical.from_json(Deployment, tree["deployment"])
    return made


async def _deployment_if_on_chain(
    client: ChainClient, deployment: Deployment, path: Path
) -> Deployment:
    if not await client.code(deployment.stakes):
        raise Unavailable(
            f"the chain has forgotten the market of {path} (a devnet chain keeps nothing): remove "
            f"its volumes and start again"
        )
    return deployment
