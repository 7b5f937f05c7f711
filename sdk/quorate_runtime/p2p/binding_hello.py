"""The first messages of a peers' stream: each side shows which account its peer key belongs to.

The dialer sends its signed binding. The server checks it and answers with its own, or with a
refusal. The encrypted connection has proved both peer keys before, so no challenge is needed.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec import Struct

from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages.key_binding import SignedBinding, check_binding
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address
from quorate_runtime.keys.crypto import recover, verify_peer
from quorate_runtime.p2p.host.stream_socket import StreamSocket

HELLO_SECONDS = 10
HELLO_BYTES_MAX = 2048
DETAIL_MAX = 300  # characters of a refusal

Authorize = Callable[[Address, Address], Awaitable[bool]]
"""(account, key) -> whether the key may speak for the account now."""

OwnBinding = Callable[[], SignedBinding]
"""Signs this program's binding with the key that speaks for its account now."""


class HelloAnswer(Struct, frozen=True):
    """The server's answer: its own binding, or the code and reason of its refusal."""

    hello: SignedBinding | None
    refused: Code | None
    detail: str


@dataclass(frozen=True, slots=True)
class Greeter:
    """Says hello for one account and checks the hello of others."""

    domain: Domain
    own: OwnBinding
    authorize: Authorize

    async def check(self, stream: StreamSocket, signed: SignedBinding) -> None:
        """Refused unless the binding is the one of the stream's other side, and its key may speak
        for the account.
        """
        check_binding(self.domain, signed, stream.remote.peer_key, recover, verify_peer)
        if not await self.authorize(signed.binding.account, signed.key):
            raise Refused(
                Code.WRONG_SIGNER,
                f"0x{signed.key.hex()} is no key of 0x{signed.binding.account.hex()} now",
            )

    async def dial(self, stream: StreamSocket, expected: Address) -> None:
        """The dialer's side. Refused by either side, ConnectionError, TimeoutError."""
        async with asyncio.timeout(HELLO_SECONDS):
            with contextlib.suppress(ConnectionError):
                # A server may refuse before it read anything. Its answer can still be received.
                await stream.send(canonical.encode(self.own()))
            answer = canonical.decode(HelloAnswer, await _received(stream), HELLO_BYTES_MAX)
            if answer.hello is None:
                raise Refused(answer.refused or Code.MALFORMED, answer.detail[:DETAIL_MAX])
            if answer.hello.binding.account != expected:
                raise Refused(
                    Code.WRONG_SIGNER,
                    f"the server is 0x{answer.hello.binding.account.hex()}, not 0x{expected.hex()}",
                )
            await self.check(stream, answer.hello)

    async def receive(self, stream: StreamSocket) -> SignedBinding:
        """The server's side, first half: the dialer's checked binding. Errors as `dial`."""
        async with asyncio.timeout(HELLO_SECONDS):
            signed = canonical.decode(SignedBinding, await _received(stream), HELLO_BYTES_MAX)
            await self.check(stream, signed)
            return signed

    async def welcome(self, stream: StreamSocket) -> None:
        await stream.send(canonical.encode(HelloAnswer(self.own(), None, "")))


async def refuse(stream: StreamSocket, refusal: Refused) -> None:
    answer = HelloAnswer(None, refusal.code, refusal.detail[:DETAIL_MAX])
    try:
        await stream.send(canonical.encode(answer))
    except ConnectionError:
        return
    await stream.close(refusal.code.value)


async def _received(stream: StreamSocket) -> bytes:
    message = await stream.receive()
    if message is None:
        raise ConnectionError("the other side ended the stream before its hello")
    return message
