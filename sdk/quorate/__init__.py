"""Quorate's client: submit jobs to a decentralised GPU compute market and get verified results.

    from quorate import Job, Market, open_profile

    async with Market(open_profile(home, passphrase)) as market:
        job = Job(image="image.tar", command=["python", "-c", "print(1)"], max_price="0.50")
        run = await market.submit(job)
        result = await run.result()

Names are loaded at first use, so that `import quorate` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.base.errors import (
        CancelledError,
        EvidenceError,
        NotVerifiedError,
        ProfileError,
        ProgramError,
        QuorateError,
        RefusedError,
        UnavailableError,
        UsageError,
    )
    from quorate.client.base.profile import Profile, create_profile, open_profile
    from quorate.client.base.result import Result
    from quorate.client.market import Market, Plan
    from quorate.client.run import Run
    from quorate.job.job import Job
    from quorate.job.jobfile import load_job
    from quorate.trust.receipt_verification import verify

_HOME = {
    "CancelledError": "base.errors",
    "EvidenceError": "base.errors",
    "NotVerifiedError": "base.errors",
    "ProfileError": "base.errors",
    "ProgramError": "base.errors",
    "QuorateError": "base.errors",
    "RefusedError": "base.errors",
    "UnavailableError": "base.errors",
    "UsageError": "base.errors",
    "Job": "job.job",
    "load_job": "job.jobfile",
    "Market": "client.market",
    "Plan": "client.market",
    "Profile": "client.base.profile",
    "create_profile": "client.base.profile",
    "open_profile": "client.base.profile",
    "Result": "client.base.result",
    "Run": "client.run",
    "verify": "trust.receipt_verification",
}
__all__ = [
    "Market",
    "Job",
    "Run",
    "Result",
    "Plan",
    "Profile",
    "create_profile",
    "open_profile",
    "load_job",
    "verify",
    "QuorateError",
    "UsageError",
    "RefusedError",
    "UnavailableError",
    "EvidenceError",
    "NotVerifiedError",
    "ProfileError",
    "ProgramError",
    "CancelledError",
]


def __getattr__(name: str) -> Any:
    """Loads a public name at first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'quorate' has no attribute {name!r}")
    return getattr(import_module(f"quorate.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
