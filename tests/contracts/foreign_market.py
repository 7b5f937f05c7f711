"""A market whose token is a real stablecoin that is not ours."""

from contracts.evm import Evm
from contracts.market import BOSS, CHAIN_ID, SECRET, Key, Market
from quorate_contracts.deploy import Contracts, Creation, created_address, plan
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import BlockNumber
from quorate_runtime.keys.bls import public_key
from support.chain import foreign_token

TOKEN = created_address(BOSS.address, 0)


class ForeignMarket(Market):
    """Its token lets only listed minters mint."""

    def fund(self, who: Key) -> Key:
        token = self.contracts.token.address
        self.evm.send(BOSS.address, foreign_token.allow_minting(token, who.address))
        return super().fund(who)


def foreign_market() -> ForeignMarket:
    """The contracts on the foreign token, with a coordinator."""
    evm = Evm.fresh()
    creation = Creation(
        "FiatToken", TOKEN, 0, (), foreign_token.CREATION, foreign_token.CREATION_GAS
    )
    evm.create(creation, BOSS.address)
    beacon = BeaconInfo(public_key(SECRET), DEVNET.beacon_period, evm.now - 10_000)
    nonce, start = 4, BlockNumber(1)  # after the three calls that begin the token
    made = plan(BOSS.address, nonce, CHAIN_ID, start, DEVNET, beacon, False, TOKEN)
    evm.contracts = Contracts.of(made.deployment)
    for each in foreign_token.set_up(TOKEN, BOSS.address):
        evm.send(BOSS.address, each)
    for each in made.creations:
        evm.create(each, BOSS.address)
    world = ForeignMarket(evm, evm.contracts, DEVNET)
    world.coordinator()
    return world
