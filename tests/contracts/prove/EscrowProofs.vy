# pragma version 0.4.3
"""
@title EscrowProofs
@notice Properties of Escrow's deployed code, for every storage and every argument. halmos calls each `check_` function.
@dev This contract is Escrow's token, registry, Epochs and client, so that it may call everything. A path that reverts
     proves nothing and breaks nothing; a Panic(1) is a counterexample. So what is compared here must not revert: `unsafe_sub`.
"""

interface Vm:
    def getCode(path: String[64]) -> Bytes[24576]: view
    def etch(target: address, code: Bytes[24576]): nonpayable
    def setArbitraryStorage(target: address): nonpayable
    def warp(timestamp: uint256): nonpayable

interface Escrow:
    def charge(coordinator: address, debts: DynArray[uint256, 64]) -> Pool: nonpayable
    def pay(coordinator: address, payments: DynArray[uint256, 64]): nonpayable
    def allocate(coordinator: address, amount: uint256): nonpayable
    def finish_release(coordinator: address): nonpayable
    def finish_withdrawal(): nonpayable
    def allocation(client: address, coordinator: address) -> Allocation: view
    def pool(coordinator: address) -> Pool: view
    def free_of(client: address) -> uint256: view

struct Allocation:
    allocated: uint256
    charged: uint256
    since: uint256
    releasing: uint256
    releaseAt: uint256

struct Pool:
    allocated: uint256
    charged: uint256
    paid: uint256

VM: constant(address) = 0x7109709ECfa91a80626fF3989D68f67F5b1DD12D
PLACE: constant(address) = 0x00000000000000000000000000000000E5C20300
MASK40: constant(uint256) = 2**40 - 1
MASK96: constant(uint256) = 2**96 - 1

sent: uint256  # tokens that Escrow has sent


@external
def setUp():
    extcall Vm(VM).etch(PLACE, staticcall Vm(VM).getCode("Escrow.sol:Escrow"))
    extcall Vm(VM).setArbitraryStorage(PLACE)


@external
def transfer(receiver: address, amount: uint256) -> bool:
    self.sent += amount
    return True


@external
@view
def role_of(account: address) -> uint256:
    return 2


@internal
@pure
def _must(holds: bool):
    if not holds:
        raw_revert(concat(0x4e487b71, convert(1, bytes32)))


@internal
@view
def _allocation(client: address, coordinator: address) -> Allocation:
    """Of a client that is charged no more than it allocated."""
    found: Allocation = staticcall Escrow(PLACE).allocation(client, coordinator)
    assert found.charged <= found.allocated
    return found


@internal
@view
def _sound(client: address, coordinator: address) -> Allocation:
    """The same after a call, where it must hold."""
    found: Allocation = staticcall Escrow(PLACE).allocation(client, coordinator)
    self._must(found.charged <= found.allocated)
    return found


@external
def check_claims_pay_no_more_than_vouchers_brought_in(coordinator: address, first: uint256, second: uint256):
    before: Pool = staticcall Escrow(PLACE).pool(coordinator)
    extcall Escrow(PLACE).pay(coordinator, [first, second])
    after: Pool = staticcall Escrow(PLACE).pool(coordinator)
    self._must(after.paid <= after.charged and after.charged == before.charged)
    self._must(unsafe_sub(after.paid, before.paid) == (first & MASK96) + (second & MASK96))
    self._must(self.sent == unsafe_sub(after.paid, before.paid))


@external
def check_vouchers_charge_what_clients_allocated(coordinator: address, first: uint256, second: uint256):
    one: address = convert(first >> 96, address)
    two: address = convert(second >> 96, address)
    before: Allocation = self._allocation(one, coordinator)
    other: Allocation = self._allocation(two, coordinator)
    pool: Pool = staticcall Escrow(PLACE).pool(coordinator)
    extcall Escrow(PLACE).charge(coordinator, [first, second])
    after: Allocation = self._sound(one, coordinator)
    others: Allocation = self._sound(two, coordinator)
    self._must(after.charged >= before.charged)
    self._must(others.charged >= other.charged)
    self._must(after.allocated == before.allocated and after.since == before.since)
    added: uint256 = after.charged - before.charged
    if one != two:
        added += others.charged - other.charged
    filled: Pool = staticcall Escrow(PLACE).pool(coordinator)
    self._must(unsafe_sub(filled.charged, pool.charged) == added and filled.paid == pool.paid)


@external
def check_an_allocation_moves_free_money_and_nothing_else(coordinator: address, amount: uint256, now: uint256):
    assert now <= MASK40
    extcall Vm(VM).warp(now)
    before: Allocation = self._allocation(self, coordinator)
    free: uint256 = staticcall Escrow(PLACE).free_of(self)
    extcall Escrow(PLACE).allocate(coordinator, amount)
    after: Allocation = self._sound(self, coordinator)
    self._must(after.allocated == unsafe_add(before.allocated, amount))
    self._must(staticcall Escrow(PLACE).free_of(self) == unsafe_sub(free, amount))
    self._must(after.charged == before.charged)


@external
def check_a_release_leaves_what_is_charged(coordinator: address, now: uint256):
    assert now <= MASK40
    extcall Vm(VM).warp(now)
    before: Allocation = self._allocation(self, coordinator)
    free: uint256 = staticcall Escrow(PLACE).free_of(self)
    extcall Escrow(PLACE).finish_release(coordinator)
    after: Allocation = self._sound(self, coordinator)
    self._must(after.charged == before.charged and after.since == before.since)
    self._must(unsafe_sub(staticcall Escrow(PLACE).free_of(self), free) == unsafe_sub(before.allocated, after.allocated))


@external
def check_a_withdrawal_pays_what_is_free(now: uint256):
    assert now <= MASK40
    extcall Vm(VM).warp(now)
    free: uint256 = staticcall Escrow(PLACE).free_of(self)
    extcall Escrow(PLACE).finish_withdrawal()
    self._must(self.sent <= free and staticcall Escrow(PLACE).free_of(self) == unsafe_sub(free, self.sent))
