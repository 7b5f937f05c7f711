"""Signatures recovered beside the event loop: those that one turn of it asks for together, in one thread.

libsecp256k1 lets go of the interpreter's lock, so what it does is another core's time: a tenth of a busy coordinator's loop. To hand
work to a thread and back costs as much as a recovery, so a turn's few are done on the spot: an idle daemon answers at once, a busy one has
dozens. Answers come in the order of the questions, so frames of one peer that each wait for theirs do not overtake each other.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from quorate_protocol.eip712 import Domain
from quorate_protocol.envelope import AnyEnvelope, Recover, check_signature_form
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Hash32, Signature
from quorate_runtime import crypto

ON_THE_SPOT_MAX = 2  # signatures of one turn

_Asked = tuple[Hash32, Signature, "asyncio.Future[Address]"]


class Recoverer:
    """Belongs to one event loop. What waits is bounded by whoever asks: each waits for its answer."""

    def __init__(self, recover: Recover = crypto.recover) -> None:
        self._recover = recover
        self._waiting: list[_Asked] = []
        self._is_away = False  # whether the thread has some; what comes meanwhile waits for its return
        self._thread = ThreadPoolExecutor(1, "recoverer")  # started when it first has work, ends with this object

    def recover(self, digest: Hash32, sig: Signature) -> "asyncio.Future[Address]":
        """As `crypto.recover`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Address] = loop.create_future()
        if not self._waiting and not self._is_away:
            loop.call_soon(self._hand_over)
        self._waiting.append((digest, sig, future))
        return future

    async def signer(self, domain: Domain, envelope: AnyEnvelope) -> Address:
        """As `envelope.signer`."""
        check_signature_form(envelope.sig)
        return await self.recover(envelope.digest(domain), envelope.sig)

    async def ahead(self, domain: Domain, envelope: AnyEnvelope, recover: Recover) -> Recover:
        """`recover`, which knows already who signed this envelope: for rules that ask in the middle of other checks."""
        digest = envelope.digest(domain)
        try:
            address = await self.recover(digest, envelope.sig)
        except Refused:
            # Said when the rules come to it.
            return recover
        return lambda hashed, sig: address if hashed == digest and sig == envelope.sig else recover(hashed, sig)

    def _hand_over(self) -> None:
        asked, self._waiting = self._waiting, []
        if len(asked) <= ON_THE_SPOT_MAX:
            _settle(asked, _recovered(self._recover, asked))
            return
        self._is_away = True
        done = asyncio.get_running_loop().run_in_executor(self._thread, _recovered, self._recover, asked)
        done.add_done_callback(partial(self._return, asked))

    def _return(self, asked: Sequence[_Asked], done: "asyncio.Future[list[Address | Refused]]") -> None:
        self._is_away = False
        error = done.exception()
        _settle(asked, done.result() if error is None else [error] * len(asked))
        if self._waiting:
            self._hand_over()


def _recovered(recover: Recover, asked: Sequence[_Asked]) -> "list[Address | Refused]":
    found: list[Address | Refused] = []
    for digest, sig, _ in asked:
        try:
            found.append(recover(digest, sig))
        except Refused as refused:
            # Raised where it was asked for.
            found.append(refused)
    return found


def _settle(asked: Sequence[_Asked], found: "Sequence[Address | BaseException]") -> None:
    for (_, _, future), answer in zip(asked, found, strict=True):
        if future.done():
            continue  # cancelled: nobody waits any more
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
