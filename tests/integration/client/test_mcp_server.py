"""Tests the MCP server as a program, with the mcp package's own client over stdio."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from quorate.base.errors import UnavailableError, UsageError
from quorate.sandboxes.tools import Limits, Tools
from quorate_protocol.units import Amount, Price
from quorate_runtime.files import file_lock
from support.rentals.local_sandboxes import IMAGE, PRICE, LocalMachines

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "support" / "rentals" / "local_sandboxes.py"
BUDGET = 1_000_000  # of which a quote of two minutes takes 122,400 at most


class Agent:
    """Calls tools and reads their answers."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, tool: str, **given: object) -> dict[str, Any]:
        answer = await self._client.call_tool(tool, given)
        assert not answer.is_error, answer.content
        assert isinstance(answer.structured_content, dict)
        return answer.structured_content

    async def refused(self, tool: str, **given: object) -> str:
        answer = await self._client.call_tool(tool, given)
        assert answer.is_error, answer.structured_content
        return " ".join(getattr(item, "text", "") for item in answer.content)

    async def made(self, minutes: int = 2) -> str:
        quote = await self("quote", image=IMAGE, minutes=minutes)
        return str((await self("create_sandbox", quote_id=quote["quote_id"]))["sandbox"])


def words(folder: Path, *more: str) -> list[str]:
    return [str(PROGRAM), str(folder), str(BUDGET), *more]


@pytest.fixture(autouse=True)
def patient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mcp package's client kills a server that is still ending after four seconds."""
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 60.0)


@asynccontextmanager
async def agent(folder: Path, *more: str) -> AsyncIterator[Agent]:
    environment = {"PYTHONPATH": str(ROOT / "tests"), "PATH": os.environ["PATH"]}
    server = StdioServerParameters(
        command=sys.executable, args=words(folder, *more), env=environment
    )
    async with Client(stdio_client(server)) as client:
        yield Agent(client)


async def test_an_agent_rents_within_limits_and_everything_ends_with_it(tmp_path: Path) -> None:
    async with agent(tmp_path) as call:
        tools = {tool.name for tool in (await call._client.list_tools()).tools}
        assert tools == {
            *("offers", "quote", "create_sandbox", "exec", "write_file", "read_file"),
            *("list_files", "forward_port", "destroy", "list_sandboxes", "spend"),
        }
        assert (await call("offers"))["offers"]
        wrong = await call.refused("quote", image=IMAGE, minutes="many")
        assert wrong.startswith("minutes: ") and "pydantic" not in wrong and "\n" not in wrong
        quote = await call("quote", image=IMAGE, minutes=2)
        assert (quote["usd_per_hour"], quote["usd_at_most"]) == ("3.672", "0.1224")
        box = (await call("create_sandbox", quote_id=quote["quote_id"]))["sandbox"]
        assert "no quote" in await call.refused("create_sandbox", quote_id=quote["quote_id"])
        await call("write_file", sandbox=box, path="d/f.txt", text="höre")
        assert (await call("read_file", sandbox=box, path="d/f.txt"))["text"] == "höre"
        assert (await call("list_files", sandbox=box, path="d"))["files"][0]["size"] == 5
        ran = await call("exec", sandbox=box, command="cat; printf '\\377'; exit 2", stdin="in")
        assert (ran["status"], ran["stdout"], ran["was_cut"]) == (2, "in�", False)
        flood = await call("exec", sandbox=box, command="yes")
        assert flood["status"] is None and flood["was_cut"] and len(flood["stdout"]) < 70_000
        slow = await call("exec", sandbox=box, command="sleep 99", timeout_seconds=1)
        assert slow["status"] is None
        assert (await call("forward_port", sandbox=box, port=80))["url"].startswith("http://127")
        assert "No such file" in await call.refused("read_file", sandbox=box, path="../../etc/x")
        other = await call.made()
        assert (await call("exec", sandbox=other, command="ls"))["stdout"] == ""
        assert len((await call("list_sandboxes"))["sandboxes"]) == 2
        assert "--max-sandboxes 2" in await _refused_creation(call)
        spend = await call("spend")
        assert spend["running_at_most_usd"] == "0.2448" and spend["budget_usd"] == "1.00"
        await call("destroy", sandbox=other)
        assert "there is no" in await call.refused("exec", sandbox=other, command="true")
        assert (await call("spend"))["running_at_most_usd"] == "0.1224"
    assert (tmp_path / "left").read_text() == "0"


async def _refused_creation(call: Agent) -> str:
    quote = await call("quote", image=IMAGE, minutes=1)
    return await call.refused("create_sandbox", quote_id=quote["quote_id"])


async def test_every_refusal_names_its_limit(tmp_path: Path) -> None:
    async with agent(tmp_path, "quick") as call:
        told = await call.refused("quote", image=IMAGE, minutes=60)
        assert "--budget 1.00" in told and "fewer minutes" in told
        assert "--allow-egress allows hub.example" in await call.refused(
            "quote", image=IMAGE, egress=["evil.example"]
        )
        assert "no path" in await call.refused("quote", image="/etc/passwd")
        assert "expired" in await _refused_creation(call)
        assert "no quote" in await call.refused("create_sandbox", quote_id="q-made-up")
        assert "port" in await call.refused("forward_port", sandbox="0x", port=1)
        for tool in ("exec", "read_file", "destroy"):
            given = {"sandbox": "../x", "command": "true", "path": "x"}
            assert "there is no" in await call.refused(tool, **given)


async def test_the_budget_outlives_the_server_also_one_that_is_killed(tmp_path: Path) -> None:
    async with agent(tmp_path) as call:
        box = await call.made()
        await call("exec", sandbox=box, command="sleep 1")
    async with agent(tmp_path) as call:
        spent = float((await call("spend"))["spent_usd"])
        assert 0.0009 < spent < 0.1
    process = _start(tmp_path)
    _call(process, 1, "quote", {"image": IMAGE, "minutes": 12})
    quote = _answer(process, 1)["quote_id"]
    _call(process, 2, "create_sandbox", {"quote_id": quote})
    _answer(process, 2)
    process.kill()
    process.communicate()
    async with agent(tmp_path) as call:
        # What the killed one ordered counts with all that it may still cost.
        assert (await call("spend"))["running_at_most_usd"] == "0.7344"
        assert "--budget" in await call.refused("quote", image=IMAGE, minutes=5)


async def test_what_the_market_says_reaches_the_agent(tmp_path: Path) -> None:
    machines = LocalMachines(tmp_path)
    tools = Tools(machines, Limits(Amount(BUDGET), "3.6"), tmp_path / "lock")
    machines.price_now = Price(9_000_000)
    with pytest.raises(UsageError, match="asks more.*--max-price 3.6"):
        await tools.quote(IMAGE, 1)
    machines.price_now = PRICE
    quote = await tools.quote(IMAGE, 1)
    machines.problem = UnavailableError("the coordinator does not answer")
    for call in (tools.quote(IMAGE, 1), tools.create_sandbox(quote["quote_id"])):
        with pytest.raises(UnavailableError, match="does not answer"):
            await call
    machines.problem = None
    with file_lock(tmp_path / "lock", KeyError()), pytest.raises(UnavailableError, match="buying"):
        await tools.create_sandbox("any")
    quotes = [await tools.quote(IMAGE, 4) for _ in range(5)]
    made = await asyncio.gather(
        *(tools.create_sandbox(it["quote_id"]) for it in quotes), return_exceptions=True
    )
    # All at once ask for 1.224, and the budget is 1.
    assert sum(isinstance(it, UsageError) for it in made) == 2 and len(machines.live()) == 3
    machines.made[0].end("its owner left")
    async with asyncio.timeout(30):  # the end of its connection tells
        while len((await tools.list_sandboxes())["sandboxes"]) != 2:
            await asyncio.sleep(0.05)
    assert not await tools._destroy_all() and not machines.live()


async def test_sigterm_destroys_everything_while_its_input_stays_open(tmp_path: Path) -> None:
    process = _start(tmp_path)
    _call(process, 1, "quote", {"image": IMAGE, "minutes": 2})
    _call(process, 2, "create_sandbox", {"quote_id": _answer(process, 1)["quote_id"]})
    box = _answer(process, 2)["sandbox"]
    _call(process, 3, "exec", {"sandbox": box, "command": "sleep 99", "timeout_seconds": 99})
    await asyncio.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 20) == 0
    process.communicate()
    assert (tmp_path / "left").read_text() == "0"


def _start(folder: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, *words(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
    )
    client = {"name": "test", "version": "1"}
    given = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    _send(process, {"id": 0, "method": "initialize", "params": given})
    _answer(process, 0)
    _send(process, {"method": "notifications/initialized"})
    return process


def _send(process: "subprocess.Popen[str]", message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()


def _call(process: "subprocess.Popen[str]", number: int, tool: str, given: dict[str, Any]) -> None:
    params = {"name": tool, "arguments": given}
    _send(process, {"id": number, "method": "tools/call", "params": params})


def _answer(process: "subprocess.Popen[str]", number: int) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        message = json.loads(line)
        if message.get("id") == number:
            found: dict[str, Any] = message["result"]
            return dict(found.get("structuredContent", found))
    raise AssertionError("it ended")
