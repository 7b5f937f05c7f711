"""One run of `quorate chain deploy`: checks everything, says the cost, sends, writes the file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from quorate_contracts import deploy
from quorate_contracts.chain_check import check_chain, check_machine
from quorate_contracts.chain_cli import verification
from quorate_contracts.chain_cli.creations import Creator, lost
from quorate_contracts.chain_cli.token_check import check_token
from quorate_contracts.deploy import Creation, Deployment, Plan
from quorate_contracts.money_texts import Currency, read_currency
from quorate_contracts.trusted_deployment import read as read_deployment
from quorate_protocol.codec import canonical
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import Limits
from quorate_protocol.messages.ports import BeaconInfo, Clock, Signer
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.fee_bids import first_bid
from quorate_runtime.files import PUBLIC_MODE, write_atomic

# The file beside `deployment.json` while a deployment is under way: `deployment.json.begun`.
#
# It is written before the first transaction, so that a repeated command goes on with the same
# addresses. It is removed once `deployment.json` is there.

FILE_BYTES_MAX = 1 << 20


class Begun(Struct, frozen=True):
    """What was planned. `code` is the digest of all creation data, which differs between versions
    of the contracts.
    """

    deployer: Address
    nonce: int
    code: Hash32
    deployment: Deployment


def begun_path(out: Path) -> Path:
    return out.with_name(out.name + ".begun")


def begun_of(deployer: Address, nonce: int, plan: Plan) -> Begun:
    code = keccak256(b"".join(item.data for item in plan.creations))
    return Begun(deployer, nonce, Hash32(code), plan.deployment)


def read_begun(out: Path) -> Begun | None:
    """Reads the file; None if there is none. Raises Refused, with the remedy, if it is damaged."""
    path = begun_path(out)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None  # not re-raised: nothing has begun
    try:
        begun: Begun = canonical.decode(Begun, data)
    except Refused as refused:
        detail = f"{path} is damaged ({refused.detail}): move it away to deploy new contracts"
        raise Refused(Code.MALFORMED, detail) from refused
    return begun


def write_begun(out: Path, begun: Begun) -> None:
    write_atomic(begun_path(out), canonical.encode(begun))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the operator asked for. `token` None makes a test token, which anybody can mint."""

    chain_id: int
    limits: Limits
    beacon: BeaconInfo
    token: Address | None
    out: Path


@dataclass(frozen=True, slots=True)
class Cost:
    """What is left to be sent and its price: gas in units, `likely` and `most` in wei."""

    contracts: tuple[str, ...]
    gas: int
    likely: int
    most: int
    balance: int


@dataclass(slots=True)
class DeploymentRun:
    """A deployment under one key. Repeating it goes on where an earlier run was ended."""

    client: ChainClient
    signer: Signer
    wanted: Wanted
    clock: Clock
    report: Callable[[str], None]

    async def check(self) -> tuple[Plan, Cost]:
        """Returns the plan and its cost. Sends nothing.

        Raises Refused, which names what is wrong with the chain, the token, the key's coins or the
        files of an earlier run.
        """
        wanted, account = self.wanted, self.signer.address
        await check_chain_id(self.client, wanted.chain_id)
        await check_machine(self.client)
        if wanted.token is not None:
            await check_token(self.client, wanted.token)
            currency = await read_currency(self.client, wanted.chain_id, wanted.token)
            self.report(f"the token {currency.name} has six decimals")
        plan = await self._plan(read_begun(wanted.out))
        missing = [item for item in plan.creations if not await self.client.code(item.address)]
        used = await self.client.nonce(account)
        for item in missing:
            if item.nonce < used:
                begun = begun_path(wanted.out)
                raise Refused(
                    Code.CHAIN, f"{lost(item)}. Move {begun} away to deploy new contracts"
                )
        cost = await self._cost(missing)
        if cost.balance < cost.most:
            currency = Currency(wanted.chain_id, plan.deployment.token)
            raise Refused(
                Code.CHAIN,
                f"the key 0x{account.hex()} has {currency.coins(cost.balance)}, and "
                f"{len(missing)} contracts may cost {currency.coins(cost.most)}: "
                f"{currency.send(account, wei=cost.most - cost.balance)}",
            )
        return plan, cost

    async def send(self, plan: Plan) -> Deployment:
        """Creates what is missing, writes `deployment.json`, and returns the deployment."""
        out = self.wanted.out
        begun = read_begun(out)
        if begun is None:
            nonce = plan.creations[0].nonce
            write_begun(out, begun_of(self.signer.address, nonce, plan))
        creator = Creator(self.client, self.signer, self.wanted.chain_id, self.clock, self.report)
        await creator.create_all(plan.creations)
        await creator.settle(plan.creations, self.wanted.limits.chain_depth)
        await check_chain(self.client, plan.deployment)
        verification.write(out, plan)
        made = await deploy.with_genesis(plan.deployment, self.client)
        write_atomic(out, deploy.encode(made), PUBLIC_MODE)
        begun_path(out).unlink(missing_ok=True)
        return made

    async def standing(self) -> Deployment | None:
        """Returns the deployment of an existing `deployment.json`, or None without the file.

        Raises Refused if the file describes another deployment than the wanted one, or the chain
        does not have its contracts.
        """
        if not self.wanted.out.exists():
            return None
        found = read_deployment(self.wanted.out)
        self._must_match(found, self.wanted.out)
        await check_chain(self.client, found)
        return found

    async def _plan(self, begun: Begun | None) -> Plan:
        wanted, account = self.wanted, self.signer.address
        if begun is None:
            nonce = await self.client.nonce(account, "pending")
            return self._plan_from(nonce, (await self.client.head()).number)
        path = begun_path(wanted.out)
        made = deploy.created_address(begun.deployer, begun.nonce)
        self._must_match(begun.deployment, path, made)
        if begun.deployer != account:
            raise Refused(
                Code.MALFORMED,
                f"{path}: the key 0x{begun.deployer.hex()} began this deployment, and --key is "
                f"0x{account.hex()}: give that key, or move the file away to deploy new contracts",
            )
        plan = self._plan_from(begun.nonce, begun.deployment.start_block)
        if begun_of(account, begun.nonce, plan) != begun:
            raise Refused(
                Code.MALFORMED,
                f"{path}: another version of quorate began this deployment: finish it with that "
                f"version, or move the file away to deploy new contracts",
            )
        return plan

    def _plan_from(self, nonce: int, start_block: BlockNumber) -> Plan:
        wanted = self.wanted
        return deploy.plan(
            self.signer.address,
            nonce,
            wanted.chain_id,
            start_block,
            wanted.limits,
            wanted.beacon,
            faucet=wanted.token is None,
            token=wanted.token,
        )

    def _must_match(self, found: Deployment, path: Path, test_token: Address | None = None) -> None:
        wanted = self.wanted
        token = wanted.token or test_token or found.token
        values: dict[str, tuple[object, object]] = {
            "chain": (found.chain_id, wanted.chain_id),
            "limits": (found.limits, wanted.limits.name),
            "beacon": (found.beacon_info(), wanted.beacon),
            "token": (found.token, token),
        }
        others = [name for name, (one, other) in values.items() if one != other]
        if others:
            raise Refused(
                Code.MALFORMED,
                f"{path} describes a deployment with another {', '.join(others)}: give its values "
                f"again, or another --out",
            )

    async def _cost(self, missing: list[Creation]) -> Cost:
        fees = await self.client.fees()
        gas = sum(item.gas for item in missing)
        bid = first_bid(fees, self.client.fee_cap_wei)
        return Cost(
            tuple(item.name for item in missing),
            gas,
            gas * (fees.base_fee_wei + fees.tip_wei),
            gas * bid.fee_max,
            await self.client.balance(self.signer.address),
        )


async def check_chain_id(client: ChainClient, wanted: int) -> None:
    """Raises Refused if the node serves another chain."""
    found = await client.chain_id()
    if found != wanted:
        raise Refused(
            Code.CHAIN,
            f"the chain node serves chain {found}, not {wanted}: name its node (--chain-url), or "
            f"the chain that you mean (--network, --chain-id)",
        )
