"""The client's access to the chain: a node, the deployment's contracts, its account's transactions.

The coordinator names a chain node at each contact. The profile keeps that URL, so that a client
reaches its money while the coordinator is away.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from quorate.base.errors import ProfileError, UnavailableError, UsageError, translated
from quorate.client.money.chain_url import remember_chain_url, stored_chain_url
from quorate.trust.coordinator_identity import CoordinatorIdentity, check_identity, read_pinned
from quorate_contracts.chain_check import check_genesis, check_machine
from quorate_contracts.code_check import Expected, check_codes
from quorate_contracts.deploy import trusted
from quorate_contracts.generated.escrow import Escrow
from quorate_contracts.generated.jobs import Jobs
from quorate_contracts.generated.token import Token
from quorate_contracts.money_texts import Currency, read_currency
from quorate_protocol.messages.ports import Clock, Signer
from quorate_protocol.messages.views import InfoView
from quorate_protocol.refusals import Code, Refused
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.rpc import Rpc
from quorate_runtime.chain.sender import Sender
from quorate_runtime.files import file_lock
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.http.urls import web_url

PINS = "pins.json"


@dataclass(frozen=True, slots=True)
class ChainAccess:
    """An open connection to a chain node that serves the deployment's chain."""

    client: ChainClient
    identity: CoordinatorIdentity
    currency: Currency
    url: str
    jobs: Jobs

    @property
    def token(self) -> Token:
        return Token(self.identity.token)

    @property
    def escrow(self) -> Escrow:
        return Escrow(self.identity.escrow)

    def sender(self, account: Signer, home: Path, clock: Clock) -> Sender:
        path, known = home / "transactions.sqlite", self.identity
        return Sender(self.client, account, path, clock, **trusted(known.domain, known.beacon))


@asynccontextmanager
async def open_chain(identity: CoordinatorIdentity, url: str) -> AsyncIterator[ChainAccess]:
    """Connects to a chain node; checks that it serves the deployment's chain and contracts.

    Raises RefusedError if it serves another one: what is signed for one chain could be sent there.
    Raises UnavailableError, which names the node and the remedy, if it does not answer.
    """
    async with plain_session() as session:
        client = ChainClient(Rpc(url, session))
        try:
            with translated():
                found = await client.chain_id()
        except UnavailableError as error:
            raise UnavailableError(
                f"the chain node {url} does not answer: {error}. Try again later, or name another "
                "with --chain-url URL"
            ) from error
        with translated():
            if found != identity.chain_id:
                raise Refused(
                    Code.CHAIN,
                    f"the chain node {url} serves chain {found}, this market is on chain "
                    f"{identity.chain_id}: nothing was signed. Name a node of that chain with "
                    "--chain-url URL",
                )
            await check_genesis(client, identity.genesis)
            await check_machine(client)
            places = await check_codes(client, _expected(identity))
            currency = await read_currency(client, identity.chain_id, identity.token)
        yield ChainAccess(client, identity, currency, url, Jobs(places["Jobs"]))


def _expected(identity: CoordinatorIdentity) -> Expected:
    """What the profile knows; the escrow's and the registry's code name the other contracts."""
    places = {"Stakes": identity.stakes, "Escrow": identity.escrow, "TestToken": identity.token}
    return Expected(places, identity.constants, identity.beacon)


async def find_chain(
    home: Path, coordinator_url: str, given_url: str
) -> tuple[CoordinatorIdentity, str]:
    """Returns the pinned identity and the URL of a chain node.

    The URL is the given one, else the one that the profile keeps, else the one that the coordinator
    names. Only for the last, or before its first contact, a profile needs the coordinator. No key
    is needed. Raises UnavailableError if the coordinator is needed and does not answer.
    """
    url = checked_url(given_url) if given_url else stored_chain_url(home)
    if url and (home / PINS).exists():
        return read_pinned(home / PINS), url
    info = await info_of(coordinator_url)
    identity = check_identity(home / PINS, info)
    remember_chain_url(home, info.chain_url)
    return identity, url or info.chain_url


def checked_url(text: str) -> str:
    """Returns the URL of `--chain-url`. UsageError names the flag."""
    try:
        return web_url("--chain-url", text, "http://127.0.0.1:8545")
    except Refused as refused:
        raise UsageError(refused.detail) from refused


@contextmanager
def one_at_a_time(home: Path) -> Iterator[None]:
    """Lets only one command of a profile send transactions at a time.

    Two at once could both find that nothing was sent yet. Raises UnavailableError if another one
    runs.
    """
    busy = UnavailableError(
        f"{home}: another transaction of this profile is under way; wait until it ends"
    )
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(home / "transactions.lock", busy))
        except OSError as error:
            raise ProfileError(f"{home}: {error.strerror}; check `ls -ld {home}`") from error
        yield


async def info_of(coordinator_url: str) -> InfoView:
    from quorate.client.base.coordinator_api import Api

    async with plain_session() as session:
        return await Api(coordinator_url, session, str).info()
