"""Gets the operator's money out: claims the fees, sends tokens and coins to a wallet, and takes the
bond back.

Each step is asked from the chain first, so that a repeated command does nothing twice.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from quorate_contracts.bindings.calls import Call
from quorate_contracts.deploy import Contracts
from quorate_contracts.money_texts import currency_of
from quorate_coordinator.chain.registration import ask
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.epoch_tree import Leaf, Proof
from quorate_protocol.units import Address, Amount, Seconds, UnixSeconds, usd
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.fee_bids import first_bid
from quorate_runtime.chain.sender import Sender, Unfunded

SEND_SECONDS = 180.0
TRANSFER_GAS = 21_000
Report = Callable[[str], None]
OwnLeaf = Callable[[int], Awaitable[tuple[Leaf, Proof] | None]]
"""Returns the coordinator's leaf in an epoch and its proof, or None if they cannot be had."""


@dataclass(frozen=True, slots=True)
class Retirement:
    """What the chain says of a coordinator that leaves. Times are the chain's."""

    is_registered: bool
    retired_at: UnixSeconds  # 0 while it has not
    due_at: UnixSeconds  # from when on the bond can be taken; 0 before it has retired
    bond: Amount
    cases: int  # open against it
    now: UnixSeconds


@dataclass(frozen=True, slots=True)
class Holding:
    """What one key can send away."""

    tokens: Amount
    wei: int  # less the gas of the transaction that sends them


@dataclass(slots=True)
class OwnMoney:
    """One coordinator's money on chain. `sender` sends for its account key."""

    client: ChainClient
    contracts: Contracts
    sender: Sender
    report: Report

    @property
    def account(self) -> Address:
        """The coordinator's account."""
        return self.sender.address

    async def retirement(self) -> Retirement:
        """Asks the chain how far the retirement is."""
        stakes = self.contracts.stakes
        retired_at = await ask(self.client, stakes.retired_at(self.account))
        after: Seconds = self.contracts.deployment.constants().unbond_after
        return Retirement(
            is_registered=await ask(self.client, stakes.index_of(self.account)) > 0,
            retired_at=retired_at,
            due_at=UnixSeconds(retired_at + after if retired_at else 0),
            bond=await ask(self.client, stakes.bond_of(self.account)),
            cases=await ask(self.client, stakes.frozen(self.account)),
            now=UnixSeconds((await self.client.head()).time),
        )

    async def retire(self) -> None:
        """Starts the unbonding of the bond. Calling it again does nothing."""
        if not (await self.retirement()).retired_at:
            await self.send("retire", self.contracts.stakes.retire_coordinator())

    async def unbond(self) -> Amount:
        """Takes the bond back to the account, and returns it. Raises Refused before its time."""
        bond = (await self.retirement()).bond
        if bond:
            await self.send("unbond", self.contracts.stakes.unbond_coordinator())
        return bond

    async def bond_lacks(self) -> Amount:
        """Returns what a slash or a fine took of the bond; 0 for one that leaves."""
        found = await self.retirement()
        whole = self.contracts.deployment.constants().coordinator_bond
        is_here = found.is_registered and not found.retired_at
        return Amount(whole - found.bond if is_here else 0)

    async def top_up(self, amount: Amount) -> None:
        """Restores a part of the bond. Raises Refused if the account has too little."""
        held = await self.balance()
        if held < amount:
            raise Refused(
                Code.BAD_AMOUNT,
                f"{usd(amount)} USD of bond are missing, and the account has {usd(held)}: send it "
                f"more (0x{self.account.hex()})",
            )
        stakes, name = self.contracts.stakes, await self._once("top-up")
        await self.send(f"{name}-approve", self.contracts.token.approve(stakes.address, amount))
        await self.send(name, stakes.top_up(amount))

    async def claim(self, own_leaf: OwnLeaf) -> Amount:
        """Claims the fees of the newest final epoch, and returns what that brought."""
        epochs = self.contracts.epochs
        newest = await ask(self.client, epochs.newest_final(self.account))
        if not newest.number:
            return Amount(0)
        found = await own_leaf(newest.number)
        if found is None:
            return Amount(0)
        leaf, proof = found
        claimed = await ask(self.client, epochs.claimed(self.account, self.account))
        if leaf.account != self.account or leaf.final <= claimed:
            return Amount(0)
        call = epochs.claim(self.account, newest.number, leaf, proof)
        await self.send(f"claim-{newest.number}", call)
        return Amount(leaf.final - claimed)

    async def is_all_claimed(self, number: int, purposes: Iterable[str]) -> bool:
        """Whether the newest final epoch `number` owes nothing, from the chain and from the
        `purposes` of mined transactions. False if neither says so.
        """
        epochs = self.contracts.epochs
        newest = await ask(self.client, epochs.epoch(self.account, number))
        pool = await ask(self.client, self.contracts.escrow.pool(self.account))
        if newest.sum_final <= pool.paid:
            return True
        names = (purpose.split("-") for purpose in purposes)
        claimed = [int(words[1]) for words in names if words[0] in ("claim", "claims")]
        if not claimed:
            return False
        before = await ask(self.client, epochs.epoch(self.account, max(claimed)))
        return before.number > 0 and before.sum_final == newest.sum_final

    async def balance(self) -> Amount:
        """Returns the account's tokens."""
        return await ask(self.client, self.contracts.token.balance_of(self.account))

    async def spendable(self, of: Address | None = None) -> Holding:
        """Returns what the account, or the key `of`, can send away now."""
        key = self.account if of is None else of
        fees = await self.client.fees()
        gas = TRANSFER_GAS * first_bid(fees, self.client.fee_cap_wei).fee_max
        tokens = await ask(self.client, self.contracts.token.balance_of(key))
        return Holding(tokens, max(0, await self.client.balance(key) - gas))

    async def send_tokens(self, to: Address, amount: Amount) -> None:
        """Sends tokens. While such a transaction waits to be mined, calling it again waits for that
        one.
        """
        await self.send(await self._once("withdraw"), self.contracts.token.transfer(to, amount))

    async def send_coins(self, to: Address) -> int:
        """Sends all coins but the gas of this transaction, and returns them in wei. It returns 0
        if there are too few.
        """
        value = (await self.spendable()).wei
        if not value:
            return 0
        purpose = await self._once("coins")
        await self.sender.send(
            purpose, to, b"", value=value, gas=TRANSFER_GAS, deadline_seconds=SEND_SECONDS
        )
        return value

    async def _once(self, what: str) -> str:
        """Returns a purpose that stays the same until its transaction is in a block."""
        return f"{what}-{await self.client.nonce(self.account)}"

    async def send(self, purpose: str, call: Call) -> None:
        """Sends a call of the account once. Raises Refused with the contract's reason, or with what
        the account lacks for gas.
        """
        try:
            await self.sender.send(
                purpose, call.to, call.data, gas=call.gas, deadline_seconds=SEND_SECONDS
            )
        except Unfunded as error:
            currency = currency_of(self.contracts.deployment)
            fees = await self.client.fees()
            wei = call.gas * first_bid(fees, self.client.fee_cap_wei).fee_max
            wei -= min(wei, await self.client.balance(self.account))
            raise Refused(
                Code.CHAIN,
                f"the account cannot pay for gas: {currency.send(self.account, wei=wei)}",
            ) from error


def amount_of(text: str, held: Amount) -> Amount:
    """Returns the amount that `--amount` names: `all`, or USD. Raises Refused for another text, or
    for more than there is.
    """
    if text == "all":
        return held
    whole, _, part = text.partition(".")
    is_number = (whole + part).isascii() and (whole + part).isdecimal() and len(whole) <= 20
    if not is_number or not whole:
        raise Refused(Code.MALFORMED, f"--amount {text[:40]!r}: a number of USD, or all")
    if len(part) > 6:
        raise Refused(Code.MALFORMED, f"--amount {text[:40]}: USD have at most 6 decimals")
    amount = Amount(int(whole) * 10**6 + int(part.ljust(6, "0")))
    if not 0 < amount <= held:
        raise Refused(Code.BAD_AMOUNT, f"--amount {text}: the account holds {usd(held)} USD")
    return amount
