"""Opens the ciphertext of each execution once, however often its provider sends the Reveal.

A commitment fixes salt and output, and a Commit fixes the ciphertext. So a second try gives the
same answer as the first, and decrypting a large output is expensive.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from quorate_content.sealed import check_sealed
from quorate_protocol.messages.signed import Reveal
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Hash32

ANSWERS_MAX = 8192


@dataclass(slots=True)
class _Answer:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_known: bool = False
    refused: Refused | None = None


class SealedChecks:
    """The newest answers, by `assignment_hash`. A restart forgets them."""

    def __init__(self, answers_max: int = ANSWERS_MAX) -> None:
        self._answers: dict[Hash32, _Answer] = {}
        self._answers_max = answers_max

    async def check(self, path: Path, reveal: Reveal, bytes_max: int) -> None:
        """Checks that a reveal, which opens its commitment, opens the ciphertext at `path` too.

        Raises Refused if it does not. Other errors, such as of the disk, are not remembered.
        """
        answer = self._answers.setdefault(reveal.assignment_hash, _Answer())
        async with answer.lock:
            if not answer.is_known:
                await self._open(answer, path, reveal, bytes_max)
        self._forget_old()
        if answer.refused is not None:
            raise Refused(answer.refused.code, answer.refused.detail)

    async def _open(self, answer: _Answer, path: Path, reveal: Reveal, bytes_max: int) -> None:
        try:
            await asyncio.to_thread(
                check_sealed, path, reveal.salt, reveal.output_digest, bytes_max
            )
        except Refused as refused:
            answer.refused = refused  # not re-raised: `check` raises it, now and later
        answer.is_known = True

    def _forget_old(self) -> None:
        while len(self._answers) > self._answers_max:
            del self._answers[next(iter(self._answers))]
