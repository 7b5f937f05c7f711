"""Rents a machine on a devnet with Docker, by the commands of docs/howto/rent.md.

With -s the test prints its figures.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quorate import Market
from support.rentals.desk import SERVER, Desk, asked, forwarded, opened_desk
from support.requirements import require

pytest.importorskip("quorate_node.rentals.ssh_server", reason="the node has no way in yet")
pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]
COPIED_BYTES, LOCAL_PORT = 64 << 20, 18_124


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(image: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    require("docker")
    async with opened_desk(image, tmp_path_factory.mktemp("rent")) as made:
        yield made


async def test_a_machine_is_rented_used_and_charged_what_the_plan_said(desk: Desk) -> None:
    rented = ("rent", "image.tar", "box", "--max-price", "9", "--for", "1h", "--memory", "1GB")
    plan = await desk.json(*rented, "--dry-run")
    short = await desk.quorate("rent", "image.tar", "--max-price", "9", "--for", "5s", status=2)
    assert "for: 5s is too short" in short
    began = time.monotonic()
    made = await desk.json(*rented, "--yes")
    assert made["paidUntil"] == pytest.approx(time.time() + 3600, abs=60), (
        "not at the highest price"
    )
    figures = {"ready_s": round(time.monotonic() - began, 1)}
    log = (desk.devnet.config.folder / "logs" / "coordinator.log").read_text()
    assert f"runs: run {made['jobId']} of client 0x" in log, "an abuse report names the lease"
    assert "hello" in await desk.quorate("shell", "box", "--", "echo hello; exit 3", status=3)
    await _copy(desk, figures)
    assert b"data" in await forwarded(desk, "box", LOCAL_PORT)
    assert await _jupyter(desk) == await _jupyter(desk), "it went on, with its token"
    await _kill_the_client(desk)
    await desk.quorate("shell", "box", "--", "echo mine > $HOME/kept.txt")
    await desk.quorate("ssh-config")
    assert "Include" in (desk.folder / ".ssh" / "config").read_text()
    assert "kept /home" in (kept := await desk.quorate("stop", "box", "--keep")), kept
    assert "is over: it ran for" in await desk.quorate("get", "box", status=None)
    over = (await desk.json("describe", "box"))["run"]
    async with Market(desk.devnet.profiles[0]) as market:
        await market.settle_ended()
        account, debt = await market.account(), market.debt()
    assert account.charged == debt.charged == over["charged"] and not account.reserved
    expected = plan["hourMicroUsd"] * over["rental"]["usageMs"] / 3_600_000
    assert over["charged"] == pytest.approx(expected, rel=0.02)
    assert made["jobId"] == over["jobId"]
    print(json.dumps(figures | {"charged": over["charged"]}))


async def _copy(desk: Desk, figures: dict[str, float]) -> None:
    data = os.urandom(COPIED_BYTES)
    (desk.folder / "data").write_bytes(data)
    began = time.monotonic()
    await desk.quorate("cp", "data", "box:/home/data")
    figures["scp_in_mb_s"] = round(COPIED_BYTES / 1e6 / (time.monotonic() - began))
    began = time.monotonic()
    await desk.quorate("cp", "box:/home/data", "back")
    figures["scp_out_mb_s"] = round(COPIED_BYTES / 1e6 / (time.monotonic() - began))
    assert (desk.folder / "back").read_bytes() == data


async def _jupyter(desk: Desk) -> str:
    words = desk.words("jupyter", "box", "--port", str(LOCAL_PORT), "--json")
    process = subprocess.Popen(words, env=desk.environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    url = str(json.loads(await asyncio.to_thread(process.stdout.readline))["url"])
    assert b"data" in await asyncio.to_thread(asked, url)
    process.terminate()
    await asyncio.to_thread(process.communicate)
    return url


async def _kill_the_client(desk: Desk) -> None:
    """Nothing is lost: the machine goes on, and the next shell gets in."""
    words = desk.words("shell", "box", "--", "echo inside; sleep 100")
    process = subprocess.Popen(
        words, env=desk.environment(), stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == b"inside\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert "again" in await desk.quorate("shell", "box", "--", "echo again")


async def test_a_kept_home_lies_in_the_next_machine(desk: Desk) -> None:
    """After the test above, which keeps one."""
    rented = ("rent", "image.tar", "box", "--max-price", "9", "--home-from", "box", "--yes")
    await desk.quorate(*rented)
    assert await desk.quorate("shell", "box", "--", "cat $HOME/kept.txt") == "mine\n"
    await desk.quorate("stop", "box")


@pytest.mark.rule("12.38", "12.42", "12.43")
async def test_a_machine_at_the_full_price_takes_the_place_of_a_spot_one(desk: Desk) -> None:
    rented = ("rent", "image.tar", "--max-price", "9", "--memory", "1GB", "--for")
    await desk.json(*rented, "1h", "cheap", "--spot", "--yes")
    assert "on demand, spot" in await desk.quorate("offers", "--rentals")
    began = time.monotonic()
    await desk.json(*rented, "60s", "dear", "--yes")
    figures = {"displaced_s": round(time.monotonic() - began, 1)}
    assert "preempted" in await desk.quorate("shell", "cheap", status=3)
    assert "this rental ends in" in await desk.quorate("logs", "cheap"), "and says why"
    assert "hello" in await desk.quorate("shell", "dear", "--", "echo hello")
    await desk.quorate("stop", "dear")
    assert figures["displaced_s"] < 90, figures
    print(json.dumps(figures))


async def test_a_machine_that_nobody_uses_ends_when_it_is_paid_no_more(desk: Desk) -> None:
    rented = ("rent", "image.tar", "idle", "--max-price", "9", "--for", "20s")
    made = await desk.json(*rented, "--yes")
    await desk.json("extend", "idle", "20s")
    for _ in range(90):  # it has 20 s more after what is paid
        found = await desk.json("describe", made["jobId"])
        if found["run"]["state"] == "ended":
            break
        await asyncio.sleep(1)
    assert "is over" in await desk.quorate("shell", "idle", status=3)
    charged = found["run"]["charged"]
    async with Market(desk.devnet.profiles[0]) as market:
        assert charged <= market.entry(bytes.fromhex(made["jobId"][2:])).reserved  # type: ignore[arg-type]


KILLED = """import asyncio, sys
from pathlib import Path
from quorate import Market
async def main():
    async with Market(sys.argv[1]) as market:
        async with market.sandbox(Path(sys.argv[2]), max_price="3.60", name="killed") as box:
            await box.exec("true")
            print(box.id, flush=True)
            await box.exec("sleep 1000", timeout=None)
asyncio.run(main())"""


async def test_sandboxes_run_commands_start_warm_and_end_with_their_program(desk: Desk) -> None:
    figures: dict[str, float] = {}
    wanted: dict[str, Any] = {"max_price": "9", "budget": "1", "resources": {"memory": "512MB"}}
    async with Market(desk.devnet.profiles[0]) as market:
        async with market.sandbox(desk.image, files={"a/f.py": b"print(42)"}, **wanted) as box:
            told = await box.exec(["python3", "f.py"], cwd="a", timeout=60)
            assert (told.status, told.stdout) == (0, b"42\n")
            assert (await box.exec("cat /dev/zero")).status is None
            await box.exec("echo $0 > mine")
            server = box.stream(["python3", "-u", "-c", SERVER], cwd="a")
            await anext(server)
            url = f"{await box.port(8123)}/f.py"
            assert await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
            await server.aclose()
            assert 0 < await box.spent() < 1_000_000
        async with market.sandboxes(desk.image, warm=1, **wanted) as pool:
            while not pool.ready:
                await asyncio.sleep(0.05)
            before = {f"0x{rental.job_id.hex()}" for rental in market.open_rentals()}
            began = time.monotonic()
            async with pool.sandbox() as box:
                assert (await box.exec("ls -A")).stdout == b""
                figures["sandbox_start_ms"] = round((time.monotonic() - began) * 1000)
                assert box.id in before
        words = [sys.executable, "-c", KILLED, str(desk.devnet.config.folder), str(desk.image)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            name = await asyncio.to_thread(program.stdout.readline)
            program.kill()
        # This Market is not told to keep it, so nothing more is paid.
        killed, began = await market.rental(name.strip()), time.monotonic()
        while (await killed.run.status()).phase != "ended":
            assert time.monotonic() - began < 60  # 20 s are paid ahead
            await asyncio.sleep(0.5)
        figures["ended_after_kill_s"] = round(time.monotonic() - began)
    print(json.dumps(figures))
