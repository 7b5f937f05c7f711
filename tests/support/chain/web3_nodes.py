"""Three kinds of chain behind one class of plain web3.py: the devnet chain, eth-tester, anvil."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from eth_account import Account
from eth_account.signers.local import LocalAccount
from web3 import AsyncEthereumTesterProvider, AsyncWeb3
from web3.types import RPCEndpoint, TxReceipt

from quorate_contracts.deploy import Deployment, plan
from quorate_devnet.chain.accounts import MNEMONIC, dev_account
from quorate_devnet.chain.anvil_process import start_anvil
from quorate_devnet.chain.precompiles import NativeVM
from quorate_devnet.chain.server import ChainConfig, running_chain
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Address, BlockNumber
from quorate_runtime.chain import Rpc
from quorate_runtime.chain.web3_provider import make_web3
from quorate_runtime.keys.bls import keygen, public_key
from support.requirements import require

BEACON = BeaconInfo(public_key(keygen(b"a beacon that no test asks")), DEVNET.beacon_period, 1)
FEES = {"maxFeePerGas": 10**11, "maxPriorityFeePerGas": 10**9}


@dataclass
class Web3Node:
    """A fresh chain. Accounts are the development accounts of the test mnemonic."""

    w3: AsyncWeb3[Any]
    kind: str
    chain_id: int

    @staticmethod
    def account(index: int) -> LocalAccount:
        """Returns a development account that signs locally, as a web3 program has one."""
        found: LocalAccount = Account.from_key(dev_account(index))
        return found

    async def mine(self) -> None:
        """Makes a block. eth-tester makes a block for each transaction by itself."""
        if self.kind != "eth-tester":
            await self.w3.manager.coro_request(RPCEndpoint("evm_mine"), [])

    async def hand_over(self, transaction: Any, nonce: int | None = None, signer: int = 0) -> Any:
        """Signs a contract call or a transaction's fields and sends it; returns the transaction
        hash.
        """
        account = self.account(signer)
        if nonce is None:
            nonce = await self.w3.eth.get_transaction_count(account.address, "pending")
        fields = {"nonce": nonce, "chainId": self.chain_id, "gas": 400_000, "value": 0, **FEES}
        if isinstance(transaction, dict):
            fields |= transaction
        else:
            fields = await transaction.build_transaction(fields | {"from": account.address})
            fields.pop("from")
        signed = account.sign_transaction(fields)
        return await self.w3.eth.send_raw_transaction(signed.raw_transaction)

    async def transact(self, transaction: Any, signer: int = 0) -> TxReceipt:
        """Sends a transaction and makes a block; returns the receipt."""
        digest = await self.hand_over(transaction, signer=signer)
        await self.mine()
        return await self.w3.eth.get_transaction_receipt(digest)

    async def deploy(self) -> Deployment:
        """Deploys all contracts, each by web3's own constructor call."""
        deployer = Address(bytes.fromhex(self.account(0).address[2:]))
        made = plan(deployer, 0, self.chain_id, BlockNumber(0), DEVNET, BEACON, faucet=True)
        from quorate_contracts.artifact import artifact

        for creation in made.creations:
            compiled = artifact(creation.name)
            factory = self.w3.eth.contract(abi=compiled.abi, bytecode=compiled.bytecode)
            built = await factory.constructor(*creation.arguments).build_transaction(
                {
                    "from": self.account(0).address,
                    "gas": creation.gas,
                    "value": 0,
                    "nonce": 0,
                    **FEES,
                }  # type: ignore[typeddict-item]
            )
            receipt = await self.transact({"data": built["data"], "gas": creation.gas})
            assert receipt["status"] == 1, creation.name
            assert bytes.fromhex(receipt["contractAddress"][2:]) == creation.address  # type: ignore[index]
        return made.deployment


@contextlib.asynccontextmanager
async def web3_node(kind: str) -> AsyncIterator[Web3Node]:
    """A fresh chain of a kind: "devnet", "eth-tester", or "anvil" (skipped where it is absent)."""
    if kind == "eth-tester":
        w3: AsyncWeb3[Any] = AsyncWeb3(_eth_tester())
        yield Web3Node(w3, kind, await w3.eth.chain_id)
        return
    async with contextlib.AsyncExitStack() as stack:
        if kind == "anvil":
            require("anvil")
            w3 = await stack.enter_async_context(anvil_web3())
        else:
            config = ChainConfig(block_seconds=None, control=True)
            url = (await stack.enter_async_context(running_chain(config))).url
            session = await stack.enter_async_context(aiohttp.ClientSession())
            w3 = make_web3(Rpc(url, session))
        yield Web3Node(w3, kind, await w3.eth.chain_id)


@contextlib.asynccontextmanager
async def anvil_web3(flags: Sequence[str] = ()) -> AsyncIterator[AsyncWeb3[Any]]:
    """Runs a fresh anvil that makes blocks only by evm_mine."""
    async with (
        start_anvil(block_seconds=None, flags=flags) as url,
        aiohttp.ClientSession() as session,
    ):
        yield make_web3(Rpc(url, session))


def _eth_tester() -> AsyncEthereumTesterProvider:
    from eth_tester import EthereumTester, PyEVMBackend  # type: ignore[attr-defined]

    backend = PyEVMBackend.from_mnemonic(
        MNEMONIC, num_accounts=4, hd_path="m/44'/60'/0'/0", vm_configuration=((0, NativeVM),)
    )
    provider = AsyncEthereumTesterProvider()
    provider.ethereum_tester = EthereumTester(backend)
    return provider
