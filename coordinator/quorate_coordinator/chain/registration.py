"""Registers the coordinator on chain, once: bond, statement key, posting key."""

import logging

from quorate_contracts.account.delivery import send_again
from quorate_contracts.calls import ask
from quorate_contracts.chain_check import check_chain
from quorate_contracts.deploy import Contracts
from quorate_contracts.money_texts import read_currency
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_protocol.limits import BY_NAME
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.tabs import LIMIT_LEAST
from quorate_protocol.units import Address, Amount, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.sender import Sender

log = logging.getLogger(__name__)
GAS_NEEDED = 550_000  # to approve the bond, set limits and register, with a margin


async def is_registered(client: ChainClient, contracts: Contracts, account: Address) -> bool:
    """Whether the account is, or was, a coordinator."""
    return any(await ask(client, contracts.stakes.posting_key(account)))


async def ensure_registered(
    client: ChainClient, contracts: Contracts, keys: CoordinatorKeys, sender: Sender
) -> None:
    """Registers the coordinator unless it is registered. Raises Refused, which names the money or
    the key that is missing.
    """
    await check_chain(client, contracts.deployment)
    stakes, account = contracts.stakes, keys.account.address
    if await is_registered(client, contracts, account):
        await _check_keys(client, contracts, account, keys)
        return
    bond = BY_NAME[contracts.deployment.limits].coordinator_bond
    await _check_money(client, contracts, account, bond)
    await send_again(
        sender, "register-approve", contracts.token.approve(contracts.deployment.stakes, bond)
    )
    # Without limits the posting key pays nobody. `quorate coordinator limit` sets others.
    limits = contracts.escrow.set_limits(LIMIT_LEAST, LIMIT_LEAST)
    await send_again(sender, "register-limits", limits)
    await send_again(
        sender,
        "register",
        stakes.register_coordinator(keys.statement.address, keys.posting.address),
    )
    log.info("registered as coordinator 0x%s", account.hex())


async def _check_money(
    client: ChainClient, contracts: Contracts, account: Address, bond: Amount
) -> None:
    """Raises Refused, which says what to send where, if the account cannot register."""
    deployment = contracts.deployment
    held = await ask(client, contracts.token.balance_of(account))
    coins = await client.balance(account)
    tokens = max(0, bond - held)
    wei = max(0, await client.gas_cost(GAS_NEEDED) - coins)
    if not tokens and not wei:
        return
    currency = await read_currency(client, deployment.chain_id, deployment.token)
    bonded = f" needs a bond of {usd(bond)} USD and has {usd(held)}" if tokens else ""
    gas = f" has {currency.coins(coins)} and cannot pay for gas" if wei else ""
    raise Refused(
        Code.NOT_REGISTERED,
        f"coordinator 0x{account.hex()}{bonded or gas}: {currency.send(account, tokens, wei)}",
    )


async def _check_keys(
    client: ChainClient, contracts: Contracts, account: Address, keys: CoordinatorKeys
) -> None:
    statement = await ask(client, contracts.stakes.operator_key(account))
    posting = await ask(client, contracts.stakes.posting_key(account))
    if statement != keys.statement.address or posting != keys.posting.address:
        raise Refused(
            Code.WRONG_SIGNER,
            (
                "the chain knows other statement or posting keys for this coordinator: "
                "`quorate coordinator swap-key` names those of this folder"
            ),
        )
