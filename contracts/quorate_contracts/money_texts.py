"""The words of every message that asks for money: which token and coin, on which chain, how much.

All roles use these texts, so that a person never has to guess what to send where. Pure, except for
`read_currency`, which asks the chain for the token's symbol.
"""

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from quorate_contracts.calls import ask
from quorate_contracts.deploy import Deployment
from quorate_contracts.generated.token import Token
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, usd

if TYPE_CHECKING:
    from quorate_runtime.chain.client import ChainClient

TEST_TOKEN = "qUSD"  # the symbol of TestToken.vy, which devnets deploy
DEVNET_CHAIN = 31337  # the id that development chains have
CHAINS: dict[int, tuple[str, str]] = {
    1: ("Ethereum", "ETH"),
    10: ("OP Mainnet", "ETH"),
    100: ("Gnosis", "xDAI"),
    8453: ("Base", "ETH"),
    17000: ("Holesky", "ETH"),
    DEVNET_CHAIN: ("a devnet", "ETH"),
    42161: ("Arbitrum One", "ETH"),
    84532: ("Base Sepolia", "ETH"),
    421614: ("Arbitrum Sepolia", "ETH"),
    560048: ("Hoodi", "ETH"),
    11155111: ("Sepolia", "ETH"),
    11155420: ("OP Sepolia", "ETH"),
}
"""Chain id -> (name, symbol of the coin that pays for gas), from chainlist.org."""

WEI_DIGITS = 18
COIN_DIGITS = 6  # of a coin in a text, rounded up
_SYMBOL = re.compile(r"[\w.\-]{1,16}", re.ASCII)


class Currency(Struct, frozen=True):
    """What money is in one deployment. `symbol` is "" while no chain node has told it."""

    chain_id: int
    token: Address
    symbol: str = ""

    @property
    def is_devnet(self) -> bool:
        return self.chain_id == DEVNET_CHAIN

    @property
    def chain(self) -> str:
        """The chain: "Sepolia (chain 11155111)"."""
        known = CHAINS.get(self.chain_id)
        return f"{known[0]} (chain {self.chain_id})" if known else f"chain {self.chain_id}"

    @property
    def coin(self) -> str:
        """The symbol of the coin that pays for gas, or "coins" on an unknown chain."""
        known = CHAINS.get(self.chain_id)
        return known[1] if known else "coins"

    @property
    def name(self) -> str:
        """The token as a person finds it: "qUSD (token 0x...)"."""
        place = f"token 0x{self.token.hex()}"
        return f"{self.symbol} ({place})" if self.symbol else f"of {place}"

    def tokens(self, amount: int) -> str:
        """An amount of millionths with the token's symbol and address."""
        return f"{usd(amount)} {self.name}"

    def coins(self, wei: int) -> str:
        """An amount of wei in coins, rounded up: "0.0021 ETH"."""
        return f"{coins(wei)} {self.coin}"

    def send(self, account: Address, tokens: int = 0, wei: int = 0) -> str:
        """What a person must do: send so much of the token and of the coin to an account."""
        parts = [self.tokens(tokens)] if tokens > 0 else []
        parts += [f"{self.coins(wei)} for gas"] if wei > 0 else []
        return f"send {' and '.join(parts)} to 0x{account.hex()} on {self.chain}"


def currency_of(deployment: Deployment) -> Currency:
    return Currency(deployment.chain_id, deployment.token)


async def read_currency(client: "ChainClient", chain_id: int, token: Address) -> Currency:
    """Returns the currency of a deployment, with the symbol that the token itself names. A symbol
    that is no short word is left out: a stranger's token could say anything.
    """
    try:
        symbol = await ask(client, Token(token).symbol())
    except (Refused, Unavailable):
        symbol = ""  # the address names the token well enough
    return Currency(chain_id, token, symbol if _SYMBOL.fullmatch(symbol) else "")


def coins(wei: int) -> str:
    """Returns wei as coins, rounded up to a millionth, without needless zeros."""
    unit = 10 ** (WEI_DIGITS - COIN_DIGITS)
    whole, rest = divmod(-(-wei // unit), 10**COIN_DIGITS)
    decimals = f"{rest:0{COIN_DIGITS}d}".rstrip("0")
    return f"{whole}.{decimals}" if decimals else str(whole)
