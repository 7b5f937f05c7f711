"""An eth-tester that the contract tests can steer: its time, its chain id and its free gas."""

from eth_tester import EthereumTester, PyEVMBackend  # type: ignore[attr-defined]
from web3 import AsyncEthereumTesterProvider

from quorate_devnet.chain.precompiles import NativeVM

GAS_LIMIT = 30_000_000


class SameSecondVM(NativeVM):
    """Prague's rules, but a block may have its parent's time.

    The contract tests move the clock themselves, and make a block of each transaction.
    """

    @classmethod
    def validate_header(cls, header, parent_header):  # type: ignore[no-untyped-def]
        earlier = min(parent_header.timestamp, header.timestamp - 1)
        super().validate_header(header, parent_header.copy(timestamp=earlier))


class SteeredBackend(PyEVMBackend):  # type: ignore[misc]  # it has no types
    """eth-tester's py-evm with a given chain id and genesis time, and without a base fee."""

    def __init__(self, chain_id: int, genesis_time: int) -> None:
        made = self.generate_genesis_params({"gas_limit": GAS_LIMIT, "timestamp": genesis_time}) | {
            "base_fee_per_gas": 0
        }
        super().__init__(made, {}, ((0, SameSecondVM),))
        type(self.chain).chain_id = chain_id  # the class belongs to this chain alone

    def set_next_timestamp(self, timestamp: int) -> None:
        """Sets the time of the pending block, which may be its parent's."""
        self.chain.set_header_timestamp(timestamp)


def steered_provider(chain_id: int, genesis_time: int) -> AsyncEthereumTesterProvider:
    """Returns a web3 provider of a fresh chain."""
    provider = AsyncEthereumTesterProvider()
    provider.ethereum_tester = EthereumTester(SteeredBackend(chain_id, genesis_time))
    return provider
