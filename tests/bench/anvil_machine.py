"""Anvil in the form of the contract tests' machine, so that one program measures gas on both.

It runs with the newest rules and EIP-7825's cap of the gas of a transaction. Like the other
machine it charges no gas price and asks for no signature.
"""

import contextlib
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from contracts.evm import CHAIN_ID, GENESIS_TIME, Mined, Reverted
from quorate_contracts.bindings.calls import Call, Query
from quorate_contracts.deploy import Contracts, Creation
from quorate_protocol.units import Address, Hash32

T = TypeVar("T")
GAS_CAP = 16_777_216
START_SECONDS = 20.0


@dataclass
class AnvilMachine:
    """A chain of one anvil process. `now` is the timestamp of the next block."""

    url: str
    now: int = GENESIS_TIME
    contracts: Contracts | None = None
    last: int = GENESIS_TIME
    number: int = 1

    def travel(self, seconds: int) -> None:
        self.now += seconds

    def create(self, creation: Creation, deployer: Address) -> int:
        """Deploys a contract; returns the gas."""
        return int(self._mined(deployer, None, creation.data, creation.gas)["gasUsed"], 16)

    def send(self, sender: Address, call: Call) -> Mined:
        """Sends a transaction with the gas that the binding gives. Raises Reverted."""
        receipt = self._mined(sender, call.to, call.data, call.gas)
        assert self.contracts is not None
        raw = tuple(
            (
                Address(bytes.fromhex(line["address"][2:])),
                tuple(Hash32(bytes.fromhex(topic[2:])) for topic in line["topics"]),
                bytes.fromhex(line["data"][2:]),
            )
            for line in receipt["logs"]
        )
        events = [self.contracts.event(*item) for item in raw]
        found = tuple(event for event in events if event is not None)
        return Mined(int(receipt["gasUsed"], 16), found, raw)

    def ask(self, query: Query[T]) -> T:
        """Runs eth_call at the time of the next block."""
        call = {"to": "0x" + query.to.hex(), "data": "0x" + query.data.hex()}
        answer = self.request("eth_call", call, "latest", {}, {"time": hex(self.now)})
        return query.decode(bytes.fromhex(answer[2:]))

    def code_bytes(self, place: Address) -> int:
        """Size of a contract's code on the chain."""
        return len(self.request("eth_getCode", "0x" + place.hex(), "latest")) // 2 - 1

    def request(self, method: str, *params: object) -> Any:
        """Returns the result of a JSON-RPC request. Raises Reverted for an error."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        request = urllib.request.Request(
            self.url, body.encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
        if "error" in answer:
            raise Reverted(str(answer["error"])[:300])
        return answer["result"]

    def _mined(self, sender: Address, to: Address | None, data: bytes, gas: int) -> dict[str, Any]:
        assert gas <= GAS_CAP, "no chain takes a transaction with so much gas"
        # Each transaction is a block here, and no two blocks of anvil have one time.
        self.now = self.last = max(self.now, self.last + 1)
        self.number += 1
        self.request("evm_setNextBlockTimestamp", self.now)
        body = {"from": "0x" + sender.hex(), "gas": hex(gas), "gasPrice": "0x0"}
        body |= {"data": "0x" + data.hex()} | ({"to": "0x" + to.hex()} if to else {})
        sent = self.request("eth_sendTransaction", body)
        receipt = self._receipt(sent)
        if receipt["status"] != "0x1":
            raise Reverted(str(self.request("eth_call", body, "latest"))[:300])
        return receipt

    def _receipt(self, transaction: str) -> dict[str, Any]:
        """Waits for the block; anvil makes it a moment after it took the transaction."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            found: dict[str, Any] | None = self.request("eth_getTransactionReceipt", transaction)
            if found is not None:
                return found
            assert time.monotonic() < deadline, "anvil mines each transaction at once"
            time.sleep(0.002)


@contextlib.contextmanager
def running_anvil(program: str) -> Iterator[AnvilMachine]:
    """Runs anvil until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--port", str(port), "--silent", "--hardfork", "osaka", "--enable-tx-gas-limit"]
    flags += ["--chain-id", str(CHAIN_ID), "--timestamp", str(GENESIS_TIME), "--auto-impersonate"]
    flags += ["--base-fee", "0", "--gas-price", "0", "--disable-min-priority-fee"]
    process = subprocess.Popen([program, *flags])
    try:
        machine = AnvilMachine(f"http://127.0.0.1:{port}")
        _wait(machine, process)
        yield machine
    finally:
        process.terminate()
        process.wait()


def _wait(machine: AnvilMachine, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            machine.request("eth_chainId")
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
