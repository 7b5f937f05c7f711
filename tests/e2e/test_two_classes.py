"""A program whose bits depend on the CPU, in a market of three determinism classes.

`exact` ends unresolved without a fault, `quorate image check --on-market` gives a tolerance, and
with that the job is accepted. With -s it prints the commands and their answers.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from quorate import Job, Market, NotVerifiedError, verify
from quorate.base.exit_codes import ExitCode
from quorate.cli.main import run_main
from quorate.trust.receipt_verification import body_of

LEVELS = ("v3", "v2", "v1")  # OPENBLAS_CORETYPE Haswell, Nehalem, Prescott
PROGRAM = """import sys, numpy
values = numpy.random.default_rng(7).normal(size=(200, 200))
numpy.save(sys.argv[1], values @ values @ values)"""
COMMAND = ["python3", "-c", PROGRAM, "/outputs/product.npy"]
Call = Callable[..., Awaitable[tuple[int, str]]]


@pytest.mark.rule("2.42", "5.161", "5.162")
async def test_a_program_of_other_bits_in_each_class_is_qualified_and_then_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, folder = tmp_path / "numpy.tar", tmp_path / "devnet"
    shown = list[str]()

    async def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(run_main, ["--devnet", f"{folder}/devnet.json", *words])
        out, err = capsys.readouterr()
        shown.append(f"$ quorate {' '.join(words)}\n{out}{err}exit code {code}\n")
        return code, out

    assert (await call("image", "build", "--python", "--with", "numpy", "-o", str(image)))[0] == 0
    async with Market.local(providers=3, cpu_levels=LEVELS, folder=folder) as market:
        job = {"image": str(image), "command": COMMAND, "max_price": 5, "max_duration": "60s"}
        await _ends_unresolved_without_a_fault(market, Job(**job, max_executions=3), call)
        fields = {"compare": "numeric", "tolerance": await _qualified(call, image)}
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps({**job, "name": "numeric", "verify": fields}))
        assert (await call("apply", "-f", str(path), "--yes"))[0] == 0
        result = await (await market.run("numeric")).result(tmp_path / "output")
        assert result.is_success and len(result.providers) == 2 and verify(result.receipt).valid
        assert np.load(tmp_path / "output" / "product.npy").shape == (200, 200)
        assert (await call("verify", str(result.receipt), "--outputs"))[0] == 0
        code, out = await call("plan", "-f", str(path))
        assert code == 0 and re.search(r"that agreed  x86_64-v\d with x86_64-v\d \(1\)", out)
    print(*shown, sep="\n")


async def _ends_unresolved_without_a_fault(market: Market, job: Job, call: Call) -> None:
    run = await market.submit(job)
    with pytest.raises(NotVerifiedError, match=r"unresolved.*product\.npy differs") as failure:
        await run.result()
    receipt = Path(re.findall(r"receipt: (\S+)\)", str(failure.value))[0])
    body = body_of(receipt.read_bytes())
    assert body is not None and verify(receipt).valid and not body.verdict.message.faulted
    assert len({item.accept.message.host for item in body.executions}) == 3
    assert len({item.reveal.output_digest for item in body.executions if item.reveal}) == 3
    assert [offer.strikes for offer in await market.offers()] == [0, 0, 0]
    code, out = await call("reputation", "--json")
    (log,) = json.loads(out)["logs"]
    assert code == 0 and log["lines"] == 1 and len(log["providers"]) == 3
    assert not any(item["checked"] or item["classes"] for item in log["providers"].values())


async def _qualified(call: Call, image: Path) -> str:
    words = ("image", "check", str(image), "--on-market", "--yes", "--max-price", "5")
    code, out = await call(*words, "--max-duration", "60s", "--", *COMMAND)
    assert code == ExitCode.NOT_VERIFIED and "product.npy: as numbers" in out
    assert len(set(re.findall(r"on (x86_64-v\d)", out))) == 2 and "apart by the receipt" in out
    found = re.search(r"compare: numeric, with a tolerance of (\d+) ppm", out)
    assert found is not None and 0 < int(found[1]) < 1000
    return f"{int(found[1]) / 1_000_000:.6f}"
