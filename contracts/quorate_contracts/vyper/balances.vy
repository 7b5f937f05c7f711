# pragma version 0.4.3
"""
@title balances
@notice What each account has at once, how tokens come and go, and what a posting key may move in a day (PROTOCOL §6).
@dev State of Escrow. A balance is promised to nobody.
"""

import money_requests
import requests
import signatures
import words

interface Token:
    def transferFrom(owner: address, receiver: address, amount: uint256) -> bool: nonpayable
    def balanceOf(owner: address) -> uint256: view
    def decimals() -> uint8: view

interface Stakes:
    def payout_of(account: address) -> address: view
    def posting_key(account: address) -> address: view

struct Limits:
    payroll: uint256  # of one day
    paid: uint256  # of it, today
    locks: uint256  # of one day, also for what a posting key gives back
    moved: uint256  # of it, today

event Deposited:
    account: indexed(address)
    amount: uint256  # into its balance

event Withdrawn:
    account: indexed(address)
    receiver: address
    amount: uint256

event Paid:
    sender: indexed(address)
    receiver: indexed(address)
    amount: uint256  # from balance to balance

event PaidMany:
    sender: indexed(address)
    pays: DynArray[uint256, BATCH]  # receiver(160) | amount(96), from balance to balance

event LimitsSet:
    account: indexed(address)
    payroll: uint256
    locks: uint256

BATCH: constant(uint256) = 256
PERMIT: constant(bytes4) = method_id("permit(address,address,uint256,uint256,uint8,bytes32,bytes32)", output_type=bytes4)
TRANSFER: constant(bytes4) = method_id("transfer(address,uint256)", output_type=bytes4)

TOKEN: public(immutable(address))
STAKES: public(immutable(address))

accounts: HashMap[address, uint256]  # balance, and the payroll's day; see `words`
lock_days: HashMap[address, uint256]  # the day of locks, in the form of an account without a balance
request_nonce: public(HashMap[address, uint256])  # relayed requests of an account so far


@deploy
def __init__(token: address, stakes: address):
    """Amounts are bounded for a token of six decimals."""
    assert staticcall Token(token).decimals() == 6, "decimals"
    TOKEN = token
    STAKES = stakes


@external
@nonreentrant
def withdraw(amount: uint256):
    """Pays from the sender's balance to its payout address, without a delay."""
    self._withdraw(msg.sender, amount)


@external
@nonreentrant
def withdraw_for(account: address, amount: uint256, terms: requests.Terms, fee: uint256, sig: signatures.Sig):
    """As `withdraw`, relayed. The fee comes out of the amount."""
    self._take_request(account, money_requests._withdraw(account, amount, terms), terms, fee, sig)
    assert fee < amount, "fee"
    self._withdraw(account, amount - fee)


@external
@nonreentrant
def pay(pays: DynArray[uint256, BATCH]):
    """
    @notice Moves the sender's balance to other balances.
    @param pays receiver(160) | amount(96)
    """
    total: uint256 = 0
    for each: uint256 in pays:
        total += each & words.MASK96
    self._debit(msg.sender, total)
    for each: uint256 in pays:
        receiver: address = empty(address)
        amount: uint256 = 0
        receiver, amount = words._pair(each)
        self._credit(receiver, amount)
    log PaidMany(sender=msg.sender, pays=pays)


@external
@nonreentrant
def set_limits(payroll: uint256, locks: uint256):
    """How much the sender's posting key may pay by payroll, and how much it may lock and give back, on one day (UTC)."""
    assert payroll <= words.AMOUNT_MAX and locks <= words.AMOUNT_MAX, "amount"
    self.accounts[msg.sender] = self._limited(self.accounts[msg.sender], payroll)
    self.lock_days[msg.sender] = self._limited(self.lock_days[msg.sender], locks)
    log LimitsSet(account=msg.sender, payroll=payroll, locks=locks)


@external
@view
def balance_of(account: address) -> uint256:
    """What an account can withdraw at once."""
    return words._balance(self.accounts[account])


@external
@view
def limits_of(account: address) -> Limits:
    """What the account's posting key may move in a day, and what it moved today."""
    payroll: words.Limit = words._limit(self.accounts[account])
    locks: words.Limit = words._limit(self.lock_days[account])
    today: uint256 = block.timestamp // words.DAY
    return Limits(payroll=payroll.amount, paid=payroll.spent if payroll.day == today else 0,
                  locks=locks.amount, moved=locks.spent if locks.day == today else 0)


# -------------------------------------------------------------------------------------------------------------- tokens


@internal
def _pull(amount: uint256):
    """Tokens of the sender in. A token that takes a fee on transfer or rebases is refused."""
    before: uint256 = staticcall Token(TOKEN).balanceOf(self)
    assert amount > 0 and amount <= words.AMOUNT_MAX - min(before, words.AMOUNT_MAX), "amount"
    assert extcall Token(TOKEN).transferFrom(msg.sender, self, amount, default_return_value=True), "token"
    assert staticcall Token(TOKEN).balanceOf(self) == before + amount, "amount"
    self._credit(msg.sender, amount)
    log Deposited(account=msg.sender, amount=amount)


@internal
def _permit(amount: uint256, deadline: uint256, v: uint256, r: bytes32, s: bytes32):
    """Anybody may have sent the permit before: then this call fails, and the allowance is there."""
    permitted: bool = raw_call(TOKEN, abi_encode(msg.sender, self, amount, deadline, v, r, s, method_id=PERMIT), revert_on_failure=False)


@internal
def _withdraw(account: address, amount: uint256):
    assert amount > 0, "amount"
    self._debit(account, amount)
    receiver: address = self._receiver(account)
    assert self._is_sent(receiver, amount), "token"
    log Withdrawn(account=account, receiver=receiver, amount=amount)


@internal
@view
def _receiver(account: address) -> address:
    payout: address = staticcall Stakes(STAKES).payout_of(account)
    return account if payout == empty(address) else payout


@internal
def _is_sent(receiver: address, amount: uint256) -> bool:
    """Whether the token took a transfer. Tokens that answer nothing revert when they refuse."""
    success: bool = False
    answer: Bytes[32] = b""
    success, answer = raw_call(TOKEN, abi_encode(receiver, amount, method_id=TRANSFER), max_outsize=32, revert_on_failure=False)
    return success and (len(answer) == 0 or convert(answer, uint256) != 0)


# ------------------------------------------------------------------------------------------------------------ balances


@internal
def _credit(account: address, amount: uint256):
    """No sum of balances is above the tokens here, so none grows into the next field of its word."""
    self.accounts[account] += amount


@internal
def _debit(account: address, amount: uint256):
    word: uint256 = self.accounts[account]
    assert amount <= words._balance(word), "amount"
    self.accounts[account] = word - amount


@internal
def _move(sender: address, receiver: address, amount: uint256):
    self._debit(sender, amount)
    self._credit(receiver, amount)
    log Paid(sender=sender, receiver=receiver, amount=amount)


@internal
def _take_request(account: address, structHash: bytes32, terms: requests.Terms, fee: uint256, sig: signatures.Sig):
    """Takes a request once. Then the relayer is paid first: one that cannot be paid has spent little gas."""
    money_requests._check(signatures._domain(STAKES), account, structHash, terms, fee, self.request_nonce[account], sig)
    self.request_nonce[account] += 1
    if fee > 0:
        self._move(account, msg.sender, fee)


# -------------------------------------------------------------------------------------------------------------- limits


@internal
@view
def _only_poster(account: address):
    assert msg.sender == staticcall Stakes(STAKES).posting_key(account), "signer"


@internal
def _spend_payroll(account: address, amount: uint256):
    """Takes from the balance of a coordinator what its posting key pays."""
    word: uint256 = self.accounts[account]
    assert amount <= words._balance(word), "amount"
    self.accounts[account] = self._spent(word, amount) - amount


@internal
def _spend_locks(account: address, amount: uint256):
    self.lock_days[account] = self._spent(self.lock_days[account], amount)


@internal
@view
def _spent(word: uint256, amount: uint256) -> uint256:
    """A word after `amount` more was spent today."""
    limit: words.Limit = words._limit(word)
    today: uint256 = block.timestamp // words.DAY
    if limit.day != today:
        limit.day = today
        limit.spent = 0
    assert amount <= limit.amount - min(limit.spent, limit.amount), "limit"
    limit.spent += amount
    return words._with_limit(word, limit)


@internal
@view
def _limited(word: uint256, amount: uint256) -> uint256:
    """A word with another limit. What was spent today stays spent."""
    limit: words.Limit = words._limit(word)
    limit.amount = amount
    return words._with_limit(word, limit)
