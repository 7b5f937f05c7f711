"""Sends transactions of a profile so that a repeated command goes on where the last one was.

A purpose is sent under the numbers 0, 1, ...: a number whose transaction reverted is done with, and
the next command tries the next one. A number that is on its way is only waited for.
"""

from quorate_contracts.calls import transact
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.refusals import Code, Refused
from quorate_runtime.chain.sender import Sender
from quorate_runtime.chain.types import Receipt

DEADLINE_SECONDS = 300.0  # no daemon sends it again: the person waits longer
TRIES = 10
EARLY = "early"  # the contracts' reason for a step before its time


class RepeatedSending:
    """The transactions of one profile, each known by its purpose."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def send(self, purpose: str, call: Call) -> Receipt:
        """Sends it, or waits for the one that is on its way. Raises Refused if it reverts now."""
        for number in range(TRIES):
            name = f"{purpose}/{number}"
            is_new = not await self._sender.known(name)
            try:
                return await transact(self._sender, name, call, seconds=DEADLINE_SECONDS)
            except Refused:
                if is_new:
                    raise
        raise Refused(Code.CHAIN, f"the contract refused {TRIES} times: {purpose}")

    async def send_in_time(self, purpose: str, call: Call) -> Receipt | None:
        """Sends it as `send` does. Returns None if the newest block was too early for it."""
        try:
            return await self.send(purpose, call)
        except Refused as refused:
            if EARLY not in refused.detail:
                raise
            return None  # not re-raised: a later try has another number

    async def done(self, purpose: str) -> Receipt | None:
        """Returns the receipt of one that was sent before and did not revert, or None."""
        for number in range(TRIES):
            name = f"{purpose}/{number}"
            if not await self._sender.known(name):
                return None
            try:
                return await self._sender.send(
                    name, None, b"", deadline_seconds=DEADLINE_SECONDS
                )  # the first call's arguments hold
            except Refused:
                continue  # not re-raised: it reverted, and the next number may be on its way
        return None
