"""A client session that may be killed anywhere: `crash_client.py PLAN`.

It is started again until it has reported the result. The plan is JSON: `home`, `password`, `name`,
`image`, `seconds` that its job runs, and for funding `fund` (USD), `chain`. After a kill the
session finds its order in the profile's ledger and continues, as `quorate` does. It makes a new
order only if the first never arrived.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from quorate import Job, Market
from quorate.base.errors import NotVerifiedError, RefusedError
from quorate.client.base.profile import Profile, open_profile
from quorate.client.money.funding import fund
from quorate.client.run import Run
from quorate.trust.coordinator_identity import identity_of
from quorate_protocol.limits import USD
from quorate_protocol.refusals import Code
from quorate_protocol.units import Amount
from quorate_runtime.clock import SystemClock
from quorate_runtime.process import crash_points

VOUCHED_SECONDS = 20.0
LONGEST_SECONDS = 30.0
SECONDS = 0.2
OFFERED_SECONDS = 60.0  # for providers to start again on a busy machine
UNOFFERED = frozenset({Code.NO_OFFER, Code.TOO_FEW_OWNERS})  # no order is taken


def job_of(name: str, image: Path, seconds: float = SECONDS) -> Job:
    """A job whose output names it, after one line of log."""
    code = (
        f"import time; print('begun', flush=True); time.sleep({seconds}); "
        f"open('/outputs/answer.txt', 'w').write('the answer of {name}')"
    )
    # A lost execution sends nothing, so its job waits until its maximum time and a grace period are
    # over.
    longest = f"{max(LONGEST_SECONDS, 2 * seconds):.0f}s"
    return Job(
        name=name, image=image, command=["python3", "-c", code], max_price="5", max_duration=longest
    )


async def found_or_submitted(market: Market, name: str, image: Path, seconds: float) -> Run:
    """Returns the run of an earlier start if the coordinator has it, else submits a new one."""
    if any(entry.name == name for entry in market.entries()):
        run = await market.run(name)
        try:
            await run.status()
        except RefusedError as error:
            # Not re-raised: the order never arrived, so nothing can be charged for it.
            assert error.code == "unknown", error
        else:
            return run
    return await submitted(market, job_of(name, image, seconds))


async def submitted(market: Market, job: Job) -> Run:
    """Submits the job, again while providers that were killed have not yet put up their offers.

    Raises RefusedError for any other refusal, TimeoutError after `OFFERED_SECONDS`.
    """
    async with asyncio.timeout(OFFERED_SECONDS):
        while True:
            try:
                return await market.submit(job)
            except RefusedError as error:
                if error.code not in UNOFFERED:
                    raise
            await asyncio.sleep(1.0)


async def work(profile: Profile, plan: dict[str, str]) -> dict[str, object]:
    """Orders a job, waits for the result, and sends the voucher."""
    async with Market(profile) as market:
        run = await found_or_submitted(
            market, plan["name"], Path(plan["image"]), float(plan.get("seconds", SECONDS))
        )
        try:
            result = await run.result()
        except NotVerifiedError:
            return {
                "job": run.job_id.hex(),
                "text": None,
            }  # this is an end too; the check of the ledger decides whether it is allowed
        text = (result.output / "answer.txt").read_text()
        async with asyncio.timeout(VOUCHED_SECONDS):
            while (account := await market.account()).vouched < account.charged:
                await asyncio.sleep(0.1)
        return {"job": run.job_id.hex(), "text": text, "receipt": result.receipt.is_file()}


async def deposit(profile: Profile, plan: dict[str, str]) -> dict[str, object]:
    """Deposits money under one purpose (the key by which the sender sends a transaction once)."""
    async with Market(profile) as market:
        pins = identity_of(market.info)
    amount = Amount(int(plan["fund"]) * USD)
    return {
        "gas": await fund(
            profile, pins, plan["chain"], amount, plan["name"], SystemClock(), mint=True
        )
    }


def main() -> None:
    """Runs the program once."""
    plan: dict[str, str] = json.loads(sys.argv[1])
    crash_points.configure(os.environ.get(crash_points.CRASH_VARIABLE, ""))
    profile = open_profile(Path(plan["home"]), plan["password"])
    print(
        json.dumps(asyncio.run(deposit(profile, plan) if "fund" in plan else work(profile, plan)))
    )


if __name__ == "__main__":
    main()
