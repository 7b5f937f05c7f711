# pragma version 0.4.3
"""
@title EscrowProofs
@notice Properties of Escrow's deployed code, for every storage and every argument. halmos calls each `check_` function.
@dev This contract is Escrow's token, registry and modules, and its caller, so that it may call everything. A path that reverts
     proves nothing and breaks nothing; a Panic(1) is a counterexample. So what is compared here must not revert: `unsafe_sub`.
"""

interface Vm:
    def getCode(path: String[64]) -> Bytes[24576]: view
    def etch(target: address, code: Bytes[24576]): nonpayable
    def setArbitraryStorage(target: address): nonpayable
    def warp(timestamp: uint256): nonpayable

interface Escrow:
    def redeem(payee: address, root: bytes32, sessions: DynArray[Session, 16], vouchers: DynArray[Voucher, 64]): nonpayable
    def payroll(payer: address, root: bytes32, pays: DynArray[uint256, 256]): nonpayable
    def draw(payee: address, payers: DynArray[address, 256]): nonpayable
    def lock(payee: address, amount: uint256): nonpayable
    def give_back(payer: address, payee: address, amount: uint256): nonpayable
    def close(payee: address): nonpayable
    def finish(payer: address, payee: address): nonpayable
    def withdraw(amount: uint256): nonpayable
    def take(account: address, amount: uint256): nonpayable
    def tab(payer: address, payee: address) -> Tab: view
    def balance_of(account: address) -> uint256: view

struct Sig:
    r: uint256
    s: uint256
    v: uint256

struct Session:
    payer: address
    sessionKey: address
    upTo: uint128
    expires: uint64
    sig: Sig

struct Voucher:
    debt: uint256
    sig: Sig

struct Tab:
    locked: uint256
    paid: uint256
    drawn: uint256
    closesAt: uint256

VM: constant(address) = 0x7109709ECfa91a80626fF3989D68f67F5b1DD12D
PLACE: constant(address) = 0x00000000000000000000000000000000E5C20300
MASK36: constant(uint256) = 2**36 - 1
MASK96: constant(uint256) = 2**96 - 1
HALF: constant(uint256) = 2**59  # of what an amount may be: no sum of two grows into the next field

sent: uint256  # tokens that Escrow has sent
poster: address  # the posting key of every account


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
def posting_key(account: address) -> address:
    return self.poster


@external
@view
def key_range(account: address, key: address) -> (uint256, uint256):
    return 1, 2**64 - 1


@external
@view
def payout_of(account: address) -> address:
    return account


@internal
@pure
def _must(holds: bool):
    if not holds:
        raw_revert(concat(0x4e487b71, convert(1, bytes32)))


@internal
@view
def _balance(account: address) -> uint256:
    found: uint256 = staticcall Escrow(PLACE).balance_of(account)
    assert found < HALF
    return found


@internal
@view
def _tab(payer: address, payee: address) -> Tab:
    """Of an account that drew no more than it was paid, and was paid no more than is locked."""
    found: Tab = staticcall Escrow(PLACE).tab(payer, payee)
    assert found.drawn <= found.paid and found.paid <= found.locked and found.locked < HALF
    return found


@internal
@view
def _sound(payer: address, payee: address, before: Tab) -> Tab:
    """The same after a call, where it must hold, and `paid` never falls."""
    found: Tab = staticcall Escrow(PLACE).tab(payer, payee)
    self._must(found.drawn <= found.paid and found.paid <= found.locked and found.paid >= before.paid)
    return found


@internal
@view
def _rise(account: address, before: uint256) -> uint256:
    return unsafe_sub(staticcall Escrow(PLACE).balance_of(account), before)


@internal
def _redeem(payee: address, debt: uint256, r: uint256, s: uint256, v: uint256):
    voucher: Voucher = Voucher(debt=debt, sig=Sig(r=r, s=s, v=v))
    sessions: DynArray[Session, 16] = []
    extcall Escrow(PLACE).redeem(payee, empty(bytes32), sessions, [voucher])


@external
def check_a_voucher_pays_a_coordinator_what_it_says_once(payee: address, debt: uint256, r: uint256, s: uint256, v: uint256, now: uint256):
    assert now <= MASK36
    extcall Vm(VM).warp(now)
    self.poster = self
    payer: address = convert(debt >> 96, address)
    before: Tab = self._tab(payer, payee)
    balance: uint256 = self._balance(payee)
    self._redeem(payee, debt, r, s, v)
    after: Tab = self._sound(payer, payee, before)
    added: uint256 = unsafe_sub(after.paid, before.paid)
    self._must(after.locked == before.locked and after.closesAt == before.closesAt)
    self._must(after.paid == max(before.paid, min(debt & MASK96, before.locked)))
    self._must(unsafe_sub(after.drawn, before.drawn) == added and self._rise(payee, balance) == added)


@external
def check_a_voucher_credits_another_payee(payee: address, debt: uint256, r: uint256, s: uint256, v: uint256, now: uint256):
    assert now <= MASK36
    extcall Vm(VM).warp(now)
    payer: address = convert(debt >> 96, address)
    before: Tab = self._tab(payer, payee)
    balance: uint256 = self._balance(payee)
    self._redeem(payee, debt, r, s, v)
    after: Tab = self._sound(payer, payee, before)
    self._must(after.locked == before.locked and after.drawn == before.drawn)
    self._must(after.paid == max(before.paid, min(debt & MASK96, before.locked)))
    self._must(self._rise(payee, balance) == 0)


@external
def check_a_payroll_pays_from_the_balance_alone(payer: address, first: uint256, second: uint256, now: uint256):
    assert now <= MASK36
    extcall Vm(VM).warp(now)
    self.poster = self
    one: address = convert(first >> 96, address)
    two: address = convert(second >> 96, address)
    before: Tab = self._tab(payer, one)
    other: Tab = self._tab(payer, two)
    balance: uint256 = self._balance(payer)
    extcall Escrow(PLACE).payroll(payer, empty(bytes32), [first, second])
    after: Tab = self._sound(payer, one, before)
    others: Tab = self._sound(payer, two, other)
    added: uint256 = unsafe_sub(after.paid, before.paid)
    self._must(unsafe_sub(after.locked, before.locked) == added and after.drawn == before.drawn)
    if one != two:
        self._must(after.paid == max(before.paid, first & MASK96))
        added = unsafe_add(added, unsafe_sub(others.paid, other.paid))
    self._must(self._rise(payer, balance) == unsafe_sub(0, added))


@external
def check_a_draw_sends_the_credit_once(payer: address, payee: address):
    before: Tab = self._tab(payer, payee)
    extcall Escrow(PLACE).draw(payee, [payer])
    after: Tab = self._sound(payer, payee, before)
    self._must(after.drawn == before.paid and after.paid == before.paid and after.locked == before.locked)
    self._must(self.sent == unsafe_sub(before.paid, before.drawn))


@external
def check_a_lock_moves_the_balance_of_its_sender(payee: address, amount: uint256):
    before: Tab = self._tab(self, payee)
    balance: uint256 = self._balance(self)
    extcall Escrow(PLACE).lock(payee, amount)
    after: Tab = self._sound(self, payee, before)
    self._must(before.closesAt == 0 and after.paid == before.paid and after.drawn == before.drawn)
    self._must(unsafe_sub(after.locked, before.locked) == amount)
    self._must(amount <= balance and self._rise(self, balance) == unsafe_sub(0, amount))


@external
def check_what_is_given_back_was_free(payer: address, amount: uint256):
    before: Tab = self._tab(payer, self)
    balance: uint256 = self._balance(payer)
    extcall Escrow(PLACE).give_back(payer, self, amount)
    after: Tab = self._sound(payer, self, before)
    self._must(after.paid == before.paid and after.drawn == before.drawn)
    self._must(unsafe_sub(before.locked, after.locked) == amount and self._rise(payer, balance) == amount)


@external
def check_a_tab_ends_after_its_time_and_frees_what_is_left(payer: address, payee: address, now: uint256):
    assert now <= MASK36
    extcall Vm(VM).warp(now)
    before: Tab = self._tab(payer, payee)
    balance: uint256 = self._balance(payer)
    extcall Escrow(PLACE).finish(payer, payee)
    after: Tab = self._sound(payer, payee, before)
    self._must(before.closesAt != 0 and now > before.closesAt and after.closesAt == 0)
    self._must(after.locked == before.paid and after.paid == before.paid and after.drawn == before.drawn)
    self._must(self._rise(payer, balance) == unsafe_sub(before.locked, before.paid))


@external
def check_closing_starts_once_and_moves_nothing(payee: address, now: uint256):
    assert now <= MASK36 // 2
    extcall Vm(VM).warp(now)
    before: Tab = self._tab(self, payee)
    extcall Escrow(PLACE).close(payee)
    after: Tab = self._sound(self, payee, before)
    self._must(before.closesAt == 0 and after.closesAt > now)
    self._must(after.locked == before.locked and after.paid == before.paid and after.drawn == before.drawn)


@external
def check_a_withdrawal_pays_what_the_balance_has(amount: uint256):
    balance: uint256 = self._balance(self)
    extcall Escrow(PLACE).withdraw(amount)
    self._must(amount <= balance and self.sent == amount and self._rise(self, balance) == unsafe_sub(0, amount))


@external
def check_a_module_takes_what_the_balance_has(account: address, amount: uint256):
    balance: uint256 = self._balance(account)
    own: uint256 = self._balance(self)
    extcall Escrow(PLACE).take(account, amount)
    self._must(amount <= balance)
    if account != self:
        self._must(self._rise(account, balance) == unsafe_sub(0, amount) and self._rise(self, own) == amount)
