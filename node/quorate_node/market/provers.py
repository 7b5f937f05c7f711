"""The provers of one challenge: one engine a GPU, each in a thread of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from quorate_attestation.challenge import ChallengeOpened, GpuClaim
from quorate_attestation.proof_document import Sections
from quorate_attestation.provers.engine import Engine
from quorate_attestation.provers.prover import Prover
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.units import Hash32

T = TypeVar("T")
EngineOf = Callable[[GpuClaim], Engine]


class GpuProver:
    """The prover of one GPU. All calls to its engine come from one thread, as drivers demand."""

    def __init__(
        self, challenge: ChallengeOpened, gpu: int, domain: Domain, engine_of: EngineOf
    ) -> None:
        self._challenge, self._gpu, self._domain = challenge, gpu, domain
        self._engine_of = engine_of
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="attestation")
        self._prover: Prover | None = None

    async def begin(self) -> None:
        """Reserves the engine's memory. Raises Unavailable if the GPU cannot answer."""
        self._prover = await self._in_thread(self._make)

    def _make(self) -> Prover:
        claim = self._challenge.gpus[self._gpu]
        base = self._challenge.base_seed(self._domain, self._gpu)
        engine = self._engine_of(claim)
        try:
            return Prover(engine, claim.parameters, self._challenge.right_seed(), base)
        except BaseException:
            engine.close()
            raise

    async def commit(self, nonces: tuple[Hash32, ...]) -> tuple[Hash32, ...]:
        """Computes the next stage and returns its roots."""
        prover = self._ready
        return await self._in_thread(lambda: prover.commit(nonces))

    async def open(self, sample_seed: Hash32) -> Sections:
        """Opens what the sample draws."""
        prover = self._ready
        return await self._in_thread(lambda: prover.open(sample_seed))

    @property
    def _ready(self) -> Prover:
        assert self._prover is not None, "begin comes first"
        return self._prover

    async def close(self) -> None:
        """Releases the memory, after what its thread still computes."""
        prover, self._prover = self._prover, None
        if prover is not None:
            await self._in_thread(prover.close)
        self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
