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
from dataclasses import dataclass, field
from typing import Any, Self

from contracts.evm import CHAIN_ID, GENESIS_TIME, Evm, Log, Reverted
from quorate_contracts.generated.contract_calls import Call
from quorate_protocol.units import Address, Hash32

GAS_CAP = 16_777_216
START_SECONDS = 20.0


@dataclass
class AnvilMachine(Evm):
    """A chain of one anvil process, whose blocks others may make too."""

    url: str = field(kw_only=True)
    last: int = GENESIS_TIME

    def fork(self) -> Self:
        raise NotImplementedError("`contracts.web3_evm` has forks")

    @property
    def state_root(self) -> bytes:
        return bytes.fromhex(self.request("eth_getBlockByNumber", "latest", False)["stateRoot"][2:])

    def code(self, account: Address) -> bytes:
        return bytes.fromhex(self.request("eth_getCode", "0x" + account.hex(), "latest")[2:])

    def gas_of_refused(self, sender: Address, call: Call) -> int:
        raise NotImplementedError("`contracts.web3_evm` takes blocks back")

    def _call(self, sender: Address, to: Address, data: bytes) -> bytes:
        call = {"from": "0x" + sender.hex(), "to": "0x" + to.hex(), "data": "0x" + data.hex()}
        answer = self.request("eth_call", call, "latest", {}, {"time": hex(self.now)})
        return bytes.fromhex(answer[2:])

    def _transact(
        self, sender: Address, to: Address | None, data: bytes, gas: int
    ) -> tuple[int, tuple[Log, ...]]:
        receipt = self._mined(sender, to, data, gas)
        logs = (
            (
                Address(bytes.fromhex(line["address"][2:])),
                tuple(Hash32(bytes.fromhex(topic[2:])) for topic in line["topics"]),
                bytes.fromhex(line["data"][2:]),
            )
            for line in receipt["logs"]
        )
        return int(receipt["gasUsed"], 16), tuple(logs)

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
        machine = AnvilMachine(url=f"http://127.0.0.1:{port}")
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
