"""Registers the provider on chain: an operator key, one open stake slot per run slot, and gas for
the operator.

`quorate node up` registers if the owner's key is on this machine and has money. Otherwise it names
everything that is missing, and the remedies, at once. `key_rotation` changes from one operator key
to the next while both are here. This module replaces an operator key that is lost.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from quorate_contracts.account.delivery import send_again, send_all
from quorate_contracts.account.goals import open_slots
from quorate_contracts.calls import ask, transact
from quorate_contracts.chain_check import check_chain, check_chain_id
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.contract_calls import Call
from quorate_contracts.money_texts import Currency, read_currency
from quorate_node.base.config import Config
from quorate_node.base.provider_keys import ProviderKeys, SigningKeys
from quorate_protocol.limits import DAY
from quorate_protocol.messages.views import InfoView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.reputation.probation import RUN_SLOTS_MAX
from quorate_protocol.units import Address, Amount, Hash32, usd
from quorate_runtime.chain import ChainClient, Sender
from quorate_runtime.chain.transactions import TRANSFER_GAS
from quorate_runtime.http.client_networks import address_of, is_public, registered_network

MARKER = "registration_state"  # the file that exists once run slots have stake
GAS_NEEDED = 1_500_000  # to register, approve and open slots, with a margin
OPERATOR_GAS = 3_000_000  # about a dozen votes, reveals and redemptions
COIN_GAS_PRICE_FLOOR = 10**9


@dataclass(frozen=True, slots=True)
class RegistrationState:
    """What the chain says about this provider. Token units; `coins` in wei."""

    is_registered: bool
    operator_key: Address
    open_slots: int  # of the classes asked for
    owner_coins: int
    operator_coins: int
    tokens: Amount
    stake_missing: Amount  # for run slots without a stake slot, and what was burned of the others
    has_left: bool  # for good: it opens no slot any more
    short: Mapping[Hash32, int]  # pool -> run slots without a stake slot
    currency: Currency  # names the token and coin that are missing
    stake_after: Amount = Amount(0)  # of the account, once the missing slots are open


@dataclass(frozen=True, slots=True)
class Missing:
    """What the provider lacks, and its remedy. Not `is_blocking`: it can work without it."""

    what: str
    remedy: str
    is_blocking: bool = True


def network_of(url: str) -> Hash32:
    """As the registration stores it. Raises Refused for a name instead of an IP address."""
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address(host)
    except ValueError as error:
        raise Refused(
            Code.MALFORMED,
            (
                f"public URL {url!r}: give an IP address, because the network is part of the "
                f"registration"
            ),
        ) from error
    return registered_network(address)


def network_url(public_url: str, observed: Iterable[str], gateway_url: str) -> str:
    """Without a public URL: the address that most coordinators observe, because a router may hide
    ours; of a loopback address, which says nothing, the gateway's. Pure.
    """
    if public_url:
        return public_url
    seen = Counter(found for text in observed if (found := address_of(text)) is not None)
    for address, _ in seen.most_common():
        if not address.is_loopback and not address.is_unspecified:
            return f"http://[{address}]" if address.version == 6 else f"http://{address}"
    return gateway_url


def agree_on_network(observed: Iterable[str], coordinators: int) -> bool:
    """Whether several coordinators, and all, see one network. One alone could have a provider
    register a false one, so that other coordinators refuse it for weeks. Pure.
    """
    seen = [address for text in observed if (address := address_of(text)) is not None]
    is_one = len({registered_network(item) for item in seen}) == 1
    return len(seen) == coordinators > 1 and is_one


async def registration_state(
    client: ChainClient, contracts: Contracts, keys: SigningKeys, wanted: Mapping[Hash32, int]
) -> RegistrationState:
    """`wanted`: pool to run slots. Raises Refused(CHAIN) if the node serves another chain."""
    await check_chain_id(client, contracts.deployment)
    stakes, account = contracts.stakes, keys.account
    opened = {pool: await ask(client, stakes.open_slots_of(account, pool)) for pool in wanted}
    short = {pool: count - opened[pool] for pool, count in wanted.items() if count > opened[pool]}
    stake_missing, stake_after = await _stakes(client, contracts, account, sum(short.values()))
    return RegistrationState(
        is_registered=await ask(client, stakes.role_of(account)) != 0,
        operator_key=await ask(client, stakes.operator_key(account)),
        open_slots=sum(opened.values()),
        owner_coins=await client.balance(account),
        operator_coins=await client.balance(keys.operator.address),
        tokens=await ask(client, contracts.token.balance_of(account)),
        stake_missing=stake_missing,
        stake_after=stake_after,
        has_left=await ask(client, stakes.exited_at(account)) > 0,
        short=short,
        currency=await read_currency(
            client, contracts.deployment.chain_id, contracts.deployment.token
        ),
    )


async def _stakes(
    client: ChainClient, contracts: Contracts, account: Address, short: int
) -> tuple[Amount, Amount]:
    """What opening so many slots pulls, and the stake of all slots that the account then holds."""
    if not short:
        return Amount(0), Amount(0)
    held = await ask(client, contracts.stakes.held(account))
    whole = (held + short) * contracts.deployment.constants().slot_stake
    staked = await ask(client, contracts.stakes.stake_of(account))
    return Amount(whole - staked), Amount(whole)


def is_staked(config: Config) -> bool:
    """By its own files."""
    path = config.path(MARKER)
    return path.exists() and bool(path.read_text())


def must_stake(config: Config) -> bool:
    """Whether a run slot without stake is a problem."""
    return not config.probation or is_staked(config)


async def slots_to_stake(
    client: ChainClient,
    contracts: Contracts,
    keys: SigningKeys,
    config: Config,
    wanted: Mapping[Hash32, int],
) -> Mapping[Hash32, int]:
    """All of `wanted`, or none while on probation, which ends as soon as the account holds the
    stake. Raises Refused for more than one slot, or a payout account that cannot stake.
    """
    if must_stake(config):
        return wanted
    found = await registration_state(client, contracts, keys, wanted)
    if found.open_slots or found.tokens >= found.stake_missing:
        return wanted
    if sum(wanted.values()) > RUN_SLOTS_MAX:
        raise Refused(
            Code.MALFORMED,
            f"probation: {sum(wanted.values())} run slots, and without stake one may be offered; "
            "`quorate node init --slots 1`, or send the stake of all",
        )
    if keys.payout != keys.account:
        raise Refused(
            Code.MALFORMED,
            f"probation: pay goes to 0x{keys.payout.hex()}, and the stake comes from "
            f"0x{keys.account.hex()}; leave out --payout until the first slot is staked",
        )
    return {}


def missing(found: RegistrationState, keys: SigningKeys, gas_price: int) -> tuple[Missing, ...]:
    """Returns what a person must do before `register` can succeed. Pure."""
    lacks: list[Missing] = []
    account, price = f"0x{keys.account.hex()}", max(gas_price, COIN_GAS_PRICE_FLOOR)
    currency = found.currency
    is_mine = found.operator_key in {signer.address for signer in keys.operators()}
    is_ready = found.is_registered and not found.stake_missing and is_mine
    if found.has_left and found.short:
        lacks.append(
            Missing(
                f"{account} has left the market for good",
                "make a provider with another owner in a new folder: quorate node init --home",
            )
        )
    if not is_ready and keys.owner is None:
        calls = (
            f"register operator key 0x{keys.operator.address.hex()} and open slots with "
            f"{usd(found.stake_missing)} USD of stake"
        )
        lacks.append(
            Missing("the owner's key is not on this machine", f"with the key of {account}: {calls}")
        )
    if not is_ready and keys.owner is not None and found.owner_coins < GAS_NEEDED * price:
        lacks.append(
            Missing(
                f"{account} cannot pay for gas",
                currency.send(keys.account, wei=_rounded(GAS_NEEDED * price - found.owner_coins)),
            )
        )
    if found.is_registered and is_mine and found.operator_key != keys.operator.address:
        remedy = (
            "quorate node up"
            if keys.owner
            else f"with the key of {account}: rotate_key(0x{keys.operator.address.hex()})"
        )
        lacks.append(
            Missing("the chain does not know the new operator key yet", remedy, is_blocking=False)
        )
    if found.stake_missing > found.tokens:
        short = found.stake_missing - found.tokens
        lacks.append(
            Missing(
                f"{account} lacks {usd(short)} USD of stake",
                currency.send(keys.account, tokens=short),
            )
        )
    if found.operator_coins < OPERATOR_GAS * price // 10 and (
        keys.owner is None or found.owner_coins < 2 * OPERATOR_GAS * price
    ):
        remedy = currency.send(keys.operator.address, wei=_rounded(OPERATOR_GAS * price))
        lacks.append(
            Missing(
                "the operator key cannot pay for votes and redemptions", remedy, is_blocking=False
            )
        )
    return tuple(lacks)


def _rounded(wei: int) -> int:
    """Returns wei rounded up to a thousandth of a coin, so that the message does not change with
    every block's fee.
    """
    return -(-wei // 10**15) * 10**15


def register_call(contracts: Contracts, keys: ProviderKeys, network: Hash32) -> Call:
    named = keys.operator.address, keys.payout, keys.peer_public, keys.box_public
    return contracts.stakes.register(*named, network)


async def register(
    client: ChainClient,
    contracts: Contracts,
    keys: ProviderKeys,
    sender: Sender,
    wanted: Mapping[Hash32, int],
    public_url: str,
    may_move: bool = False,
) -> RegistrationState:
    """Also opens stake slots, sends gas money to the operator key, and replaces a lost one. Skips
    what the chain has.
    """
    found = await registration_state(client, contracts, keys, wanted)
    if not found.is_registered:
        call = register_call(contracts, keys, network_of(public_url))
        await send_again(sender, f"register/{contracts.deployment.stakes.hex()[:8]}", call)
    elif found.operator_key not in {signer.address for signer in keys.operators()}:
        await rotate(contracts, keys, sender)
    if found.is_registered and may_move:
        await _move(client, contracts, keys, sender, public_url)
    nonce = await client.nonce(keys.account)
    found = await registration_state(client, contracts, keys, wanted)
    query = contracts.token.allowance(keys.account, contracts.stakes.address)
    allowance = await ask(client, query)
    calls = open_slots(contracts, found.short, found.stake_missing, allowance)
    await send_all(sender, calls, nonce)
    await _fund_operator(client, keys, sender, found)
    return await registration_state(client, contracts, keys, wanted)


async def _move(
    client: ChainClient, contracts: Contracts, keys: ProviderKeys, sender: Sender, url: str
) -> None:
    """Registers the network of another public address, under which account and stake stay."""
    stakes, address = contracts.stakes, address_of(urlsplit(url).hostname or "")
    if address is None or not is_public(address):
        return  # coordinators compare only public addresses (3.71)
    network = registered_network(address)
    if await ask(client, stakes.network_of(keys.account)) == network:
        return
    purpose = f"network/{network.hex()}/{await client.nonce(keys.account)}"
    try:
        await transact(sender, purpose, stakes.change_network(network))
    except Refused as refused:
        days = 2 * contracts.deployment.constants().profile_delay // DAY
        raise Refused(
            refused.code,
            f"coordinators refuse work from {address}, which is another network than registered; "
            f"the chain takes the next change {days} days after the last one "
            f"({refused.detail})",
        ) from refused


async def rotate(contracts: Contracts, keys: ProviderKeys, sender: Sender) -> None:
    """Once for each key: a second call would shorten the key's validity."""
    stakes, key = contracts.stakes, keys.operator.address
    await transact(
        sender,
        f"rotate/{contracts.deployment.stakes.hex()[:8]}/{key.hex()}",
        stakes.rotate_key(key),
    )


async def _fund_operator(
    client: ChainClient, keys: ProviderKeys, sender: Sender, found: RegistrationState
) -> None:
    fees = await client.fees()
    price = max(fees.base_fee_wei + fees.tip_wei, COIN_GAS_PRICE_FLOOR)
    if found.operator_coins >= OPERATOR_GAS * price // 10 or keys.operator.address == keys.account:
        return
    nonce = await client.nonce(keys.account)
    purpose = f"fund/{keys.operator.address.hex()}/{nonce}"
    call = Call(keys.operator.address, b"", TRANSFER_GAS)
    await transact(sender, purpose, call, OPERATOR_GAS * price)


async def check_coordinator(client: ChainClient, contracts: Contracts, info: InfoView) -> None:
    """Raises Refused if the chain does not know the coordinator with this statement key."""
    await check_chain(client, contracts.deployment)
    key = await ask(client, contracts.stakes.operator_key(info.coordinator))
    if key != info.statement_key:
        raise Refused(
            Code.NOT_REGISTERED,
            f"coordinator 0x{info.coordinator.hex()}: the chain knows another statement key for it",
        )
