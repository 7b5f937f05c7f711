"""The parameters and figures of one benchmark run of jobs, and its timed signatures."""

import time
from dataclasses import dataclass

from quorate_protocol.messages.envelope import Sign
from quorate_protocol.units import Address, Hash32, Signature
from quorate_runtime.keys.crypto import KeySigner, recover, recover_again


@dataclass(frozen=True, slots=True)
class Setup:
    """One run.

    `is_signed` False: signatures are 65 bytes of digest and their check always passes.
    `is_audited` False: one execution, because there are too few owners for a second one.
    """

    jobs: int
    outstanding: int
    is_signed: bool
    is_audited: bool

    @property
    def providers(self) -> int:
        """How many providers there are."""
        return 64 if self.is_audited else 2

    @property
    def slots(self) -> int:
        """Run slots of each provider; an offer may have 255 of a class."""
        return 8 if self.is_audited else 255


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run."""

    jobs_s: float
    p50_ms: float
    p99_ms: float
    fsyncs_per_job: float
    cpu_ms_per_job: (
        float  # of all threads of the process: compare this on a machine that other programs use
    )
    crypto_share: float  # share of the run's seconds in the coordinator's own signing and checking
    executions_per_job: float


@dataclass(slots=True)
class Crypto:
    """Signing and recovering, timed."""

    is_real: bool
    seconds: float = 0.0

    def signing(self, key: KeySigner) -> Sign:
        """`key.sign`, timed, or the constant."""

        def sign(hashed: Hash32) -> Signature:
            if not self.is_real:
                return Signature(hashed + hashed + b"\x1b")
            begun = time.perf_counter()
            signature = key.sign(hashed)
            self.seconds += time.perf_counter() - begun
            return signature

        return sign

    def recover(self, hashed: Hash32, signature: Signature) -> Address:
        """Recovers as the frame handler does, timed."""
        begun = time.perf_counter()
        address = recover(hashed, signature)
        self.seconds += time.perf_counter() - begun
        return address

    def recover_again(self, hashed: Hash32, signature: Signature) -> Address:
        """Recovers as the API does for orders, timed."""
        begun = time.perf_counter()
        address = recover_again(hashed, signature)
        self.seconds += time.perf_counter() - begun
        return address
