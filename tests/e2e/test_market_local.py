"""Tests `Market.local()`, which runs a whole market inside a user's own test."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from quorate import CancelledError, Job, Market, UsageError, verify
from quorate.cli.run_state import state
from quorate.trust.receipt_chain import check_chain
from quorate.trust.receipt_verification import body_of, pinned
from quorate_content.dag.disk_tree import cid_of_path
from quorate_contracts.artifact import CONTRACTS
from quorate_contracts.deploy import Deployment
from quorate_protocol.units import ZERO_HASH, BlockNumber
from quorate_protocol.values import replace


@pytest.mark.rule("3.61", "7.33")
async def test_a_local_market_runs_a_job(image: Path, tmp_path: Path) -> None:
    async with Market.local(executor="process") as market:
        command = [
            "python3",
            "-c",
            "import sys; open(sys.argv[1], 'w').write(str(6 * 7))",
            "/outputs/answer",
        ]
        run = await market.submit(
            Job(image=image, command=command, max_price="5", max_duration="30s")
        )
        result = await run.result(tmp_path / "output")
        assert result.is_success and len(result.providers) == 2
        assert (tmp_path / "output" / "answer").read_text() == "42"
        await _check_on_chain(market, result.receipt)
        assert 0 < (await market.account()).charged == result.charged
        found = await market.balance()
        assert found.coordinators[0].free > found.balance == 0
        with pytest.raises(UsageError, match="amount: '-1' is negative"):
            await market.withdraw("-1")
        state = await market.withdraw("1.50")
        assert state.paid == 1_500_000, "the coordinator gives it back at once"
        assert (await market.balance()).wallet == found.wallet + 1_500_000

        @market.function(image=image, max_price="5", max_duration="30s")
        def doubled(values: list[int]) -> list[int]:
            return [2 * value for value in values]

        assert await doubled.map([[1, 2], [3]]) == [[2, 4], [6]]
        await _check_tolerance(market, image, tmp_path / "noisy")
        await _check_stop(market, image, tmp_path / "part")
        await _check_fast(market, image)


async def _check_stop(market: Market, image: Path, part: Path) -> None:
    """What a stopped program had written arrives: its time is paid."""
    program = (
        "import sys, time; open(sys.argv[1], 'w').write('kept'); print('epoch 1', flush=True); "
        "time.sleep(60)"
    )
    command = ["python3", "-c", program, "/outputs/epoch-1"]
    job = Job(image=image, command=command, max_price="5", max_duration="2m")
    run = await market.submit(job)
    async with asyncio.timeout(60), aclosing(run.logs(follow=True)) as lines:
        await anext(lines)
    await run.stop()
    with pytest.raises(CancelledError, match=f"had written is in {part}, of one execution"):
        await run.result(part)
    assert (part / "epoch-1").read_text() == "kept"
    assert state(await run.status()) == "stopped"


async def _check_fast(market: Market, image: Path) -> None:
    """A job is decided before two runs of it in turn could end, by two owners that the round after
    its Ack drew.
    """
    seconds = 40
    job = Job(
        image=image,
        command=["python3", "-c", f"import time; time.sleep({seconds})"],
        max_price="5",
        max_duration="2m",
        verify="quorum-2",
        speed="fast",
    )
    result = await (await market.submit(job)).result()
    await _check_on_chain(market, result.receipt)
    body = body_of(result.receipt.read_bytes())
    assert body is not None and len(body.executions) == 2 and len(body.batches) == 1
    taken = result.verdict.time - body.ack.message.ack_time
    assert result.is_success and seconds <= taken < 2 * seconds, f"it took {taken} s"
    plan = await market.plan(job)
    assert plan.estimate is not None and seconds <= plan.estimate.run_seconds < 2 * seconds


async def _check_tolerance(market: Market, image: Path, output: Path) -> None:
    """Two owners' numbers differ by noise. They are accepted, and anybody may compare again."""
    program = (
        "import json, random, sys; random.seed(); "
        "json.dump([2.5 + random.random() / 1e4], open(sys.argv[1], 'w'))"
    )
    job = Job(
        image=image,
        command=["python3", "-c", program, "/outputs/loss.json"],
        max_price="5",
        max_duration="30s",
        compare="numeric",
        include=["*.json"],
        tolerance="0.001",
    )
    result = await (await market.submit(job)).result(output)
    assert result.is_success and len(result.providers) == 2
    body = body_of(result.receipt.read_bytes())
    assert body is not None and verify(result.receipt).valid
    (shown,) = body.distances
    assert shown.ppb is not None and 0 < shown.ppb < 40_000
    outputs = {item.reveal.output_digest for item in body.executions if item.reveal}
    first = body.executions[0].reveal
    assert len(outputs) == 2 and first is not None
    assert cid_of_path(output).digest == first.output_digest, "the first of two is nearest"
    (found,) = await market.compare_again(body)
    assert found.is_good and found.name == "outputs[0,1]"
    false = replace(body, distances=(replace(shown, ppb=shown.ppb + 3),))
    (found,) = await market.compare_again(false)
    assert not found.is_good and f"the receipt says {shown.ppb + 3}" in found.detail


async def _check_on_chain(market: Market, path: Path) -> None:
    """The receipt agrees with the chain. One with another payout does not."""
    body, info = body_of(path.read_bytes()), market.info
    assert body is not None
    places = (info.contracts[name] for name in CONTRACTS)
    beacon = info.beacon.public_key, info.beacon.period, info.beacon.genesis_time
    known = Deployment(info.chain_id, BlockNumber(0), info.limits, *places, *beacon)
    assert all(check.is_good for check in pinned(body, known, info.coordinator))
    found = await check_chain(body, known, info.chain_url)
    assert len(found) >= 10 and all(check.is_good for check in found), found
    first, *others = body.taken_from_chain.parties
    moved = replace(first, payout=info.coordinator)
    chain = replace(body.taken_from_chain, parties=(moved, *others))
    altered = await check_chain(replace(body, taken_from_chain=chain), known, info.chain_url)
    assert [check.name for check in altered if not check.is_good] == ["chain:party[0]"]
    acked = replace(body.ack, message=replace(body.ack.message, eligible_root=ZERO_HASH))
    altered = await check_chain(replace(body, ack=acked), known, info.chain_url)
    assert [check.name for check in altered if not check.is_good] == ["chain:eligible"]
