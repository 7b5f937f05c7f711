# pragma version 0.4.3
"""
@title Escrow
@notice All money between accounts: balances, and one-directional tabs from a payer to a payee (PROTOCOL §6). A tab is paid by cumulative
        vouchers that the payer signed, or by a coordinator's payroll. Both raise the same cumulative sum, so nothing is paid twice.
@dev tokens here = balances + (locked - drawn) of every tab. No owner, no pause. Only time stamps: block numbers are never used. Every
     act has an event; whom a payroll paid stands in the call's data.
"""

import balances
import money_requests
import requests
import signatures
import words

initializes: balances
exports: (balances.TOKEN, balances.STAKES, balances.request_nonce, balances.balance_of, balances.limits_of)
exports: (balances.withdraw, balances.withdraw_for, balances.pay, balances.set_limits)

interface Stakes:
    def posting_key(account: address) -> address: view
    def key_range(account: address, key: address) -> (uint256, uint256): view

struct SignedSession:
    payer: address
    sessionKey: address
    upTo: uint128
    expires: uint64
    sig: signatures.Sig  # by the payer's account

struct SignedVoucher:
    debt: uint256  # payer(160) | cumulative(96)
    sig: signatures.Sig  # by a session key of the payer, or by the statement key of a coordinator

event Locked:
    payer: indexed(address)
    payee: indexed(address)
    amount: uint256  # from the payer's balance

event SessionShown:
    payer: indexed(address)
    payee: indexed(address)
    key: address
    upTo: uint256
    expires: uint256

event Redeemed:
    payer: indexed(address)
    payee: indexed(address)
    paid: uint256  # so far: a coordinator's balance rose alike, another payee draws it

event Receipts:
    payee: indexed(address)
    root: bytes32  # over the receipts that a redemption pays for, by the payee

event Payroll:
    payer: indexed(address)
    root: bytes32  # over the receipts that it pays for
    amount: uint256  # from the payer's balance

event Drawn:
    payer: indexed(address)
    payee: indexed(address)
    receiver: address
    amount: uint256

event GivenBack:
    payer: indexed(address)
    payee: indexed(address)
    amount: uint256  # into the payer's balance

event Closing:
    payer: indexed(address)
    payee: indexed(address)
    closesAt: uint256

event Closed:
    payer: indexed(address)
    payee: indexed(address)
    amount: uint256  # into the payer's balance

BATCH: constant(uint256) = 256  # payees of one list
VOUCHERS_MAX: constant(uint256) = 64
SESSIONS_MAX: constant(uint256) = 16  # few, because room for all of them costs gas
SESSION_TYPE: constant(bytes32) = keccak256("Session(address client,address sessionKey,address coordinator,uint128 upTo,uint64 expires)")
VOUCHER_TYPE: constant(bytes32) = keccak256("Voucher(address payer,address payee,uint128 cumulative)")

COURT: public(immutable(address))
JOBS: public(immutable(address))
CLIENT_CLOSE: public(immutable(uint256))
COORDINATOR_CLOSE: public(immutable(uint256))

tabs: HashMap[address, HashMap[address, uint256]]  # payer -> payee
sessions: HashMap[address, HashMap[address, HashMap[address, uint256]]]  # payer -> payee -> session key


@deploy
def __init__(token: address, stakes: address, court: address, jobs: address, clientClose: uint256, coordinatorClose: uint256):
    """Modules are named before they exist; their addresses follow from the deployer's nonces."""
    balances.__init__(token, stakes)
    COURT = court
    JOBS = jobs
    CLIENT_CLOSE = clientClose
    COORDINATOR_CLOSE = coordinatorClose


# ------------------------------------------------------------------------------------------------------------ balances


@external
@nonreentrant
def deposit(amount: uint256, payee: address):
    """Takes tokens from the sender into its balance, or into its tab for `payee` if one is named."""
    self._deposit(amount, payee)


@external
@nonreentrant
def deposit_with_permit(amount: uint256, payee: address, deadline: uint256, v: uint256, r: bytes32, s: bytes32):
    """As `deposit`, with the sender's permit (EIP-2612) of this amount for this contract, which saves an approval."""
    balances._permit(amount, deadline, v, r, s)
    self._deposit(amount, payee)


@external
@nonreentrant
def take(account: address, amount: uint256):
    """Court and Jobs only: moves an account's balance to the sender's balance, because the account called the sender."""
    assert msg.sender in [COURT, JOBS], "module"
    balances._move(account, msg.sender, amount)


# ---------------------------------------------------------------------------------------------------------------- tabs


@external
@nonreentrant
def lock(payee: address, amount: uint256):
    """Moves the sender's balance into its tab for a payee."""
    self._lock(msg.sender, payee, amount)


@external
@nonreentrant
def lock_for(account: address, payee: address, amount: uint256, terms: requests.Terms, fee: uint256, sig: signatures.Sig):
    """As `lock`, relayed."""
    balances._take_request(account, money_requests._lock(account, payee, amount, terms), terms, fee, sig)
    self._lock(account, payee, amount)


@external
@nonreentrant
def lock_many(payer: address, locks: DynArray[uint256, BATCH]):
    """
    @notice `lock` for many payees by the posting key, within the limit of the day.
    @param locks payee(160) | amount(96)
    """
    balances._only_poster(payer)
    total: uint256 = 0
    for each: uint256 in locks:
        payee: address = empty(address)
        amount: uint256 = 0
        payee, amount = words._pair(each)
        self._lock(payer, payee, amount)
        total += amount
    balances._spend_locks(payer, total)


@external
@nonreentrant
def redeem(payee: address, root: bytes32, sessions: DynArray[SignedSession, SESSIONS_MAX], vouchers: DynArray[SignedVoucher, VOUCHERS_MAX]):
    """
    @notice Pays cumulative vouchers out of their payers' tabs, at once, and as far as is locked. Anyone may send it.
    @param root over the receipts that they pay for; only the payee and its posting key may state one
    """
    poster: address = staticcall Stakes(balances.STAKES).posting_key(payee)
    domain: bytes32 = signatures._domain(balances.STAKES)
    for each: SignedSession in sessions:
        self._show(domain, payee, each)
    total: uint256 = 0
    for each: SignedVoucher in vouchers:
        total += self._redeem(domain, payee, each, poster == empty(address))
    if poster != empty(address):
        balances._credit(payee, total)
    if root != empty(bytes32):
        assert msg.sender in [payee, poster], "root"
        log Receipts(payee=payee, root=root)


@external
@nonreentrant
def payroll(payer: address, root: bytes32, pays: DynArray[uint256, BATCH]):
    """
    @notice A coordinator's posting key pays from its balance, within the limit of the day. What is locked for the payees stays locked.
            Sums are cumulative, so a list that is sent twice pays once.
    @param root over the receipts that it pays for
    @param pays payee(160) | cumulative(96)
    """
    balances._only_poster(payer)
    total: uint256 = 0
    for each: uint256 in pays:
        payee: address = empty(address)
        cumulative: uint256 = 0
        payee, cumulative = words._pair(each)
        tab: words.Tab = words._tab(self.tabs[payer][payee])
        if cumulative > tab.paid:
            added: uint256 = cumulative - tab.paid
            assert tab.locked + added <= words.AMOUNT_MAX, "amount"
            tab.locked += added
            tab.paid = cumulative
            self.tabs[payer][payee] = words._tab_word(tab)
            total += added
    balances._spend_payroll(payer, total)
    log Payroll(payer=payer, root=root, amount=total)


@external
@nonreentrant
def draw(payee: address, payers: DynArray[address, BATCH]):
    """Pays what tabs credited to a payee, to its payout address. Anyone may send it."""
    receiver: address = balances._receiver(payee)
    total: uint256 = 0
    for payer: address in payers:
        tab: words.Tab = words._tab(self.tabs[payer][payee])
        credit: uint256 = tab.paid - tab.drawn
        if credit > 0:
            tab.drawn = tab.paid
            self.tabs[payer][payee] = words._tab_word(tab)
            total += credit
            log Drawn(payer=payer, payee=payee, receiver=receiver, amount=credit)
    assert total > 0, "amount"
    assert balances._is_sent(receiver, total), "token"


@external
@nonreentrant
def draw_many(payer: address, payees: DynArray[address, BATCH]):
    """`draw` for many payees of one payer. A payee that the token refuses to pay keeps its credit and stops nobody else."""
    for payee: address in payees:
        before: uint256 = self.tabs[payer][payee]
        tab: words.Tab = words._tab(before)
        credit: uint256 = tab.paid - tab.drawn
        if credit == 0:
            continue
        receiver: address = balances._receiver(payee)
        tab.drawn = tab.paid
        self.tabs[payer][payee] = words._tab_word(tab)
        if balances._is_sent(receiver, credit):
            log Drawn(payer=payer, payee=payee, receiver=receiver, amount=credit)
        else:
            self.tabs[payer][payee] = before


@external
@nonreentrant
def give_back(payer: address, payee: address, amount: uint256):
    """The payee frees a part of what is locked for it, at once; so does its posting key, within the limit of the day."""
    if msg.sender != payee:
        balances._only_poster(payee)
        balances._spend_locks(payee, amount)
    tab: words.Tab = words._tab(self.tabs[payer][payee])
    assert amount > 0 and amount <= tab.locked - tab.paid, "amount"
    tab.locked -= amount
    self.tabs[payer][payee] = words._tab_word(tab)
    balances._credit(payer, amount)
    log GivenBack(payer=payer, payee=payee, amount=amount)


@external
@nonreentrant
def close(payee: address):
    """The sender announces the end of its tab for a payee. Vouchers are paid until then, and nothing more is locked."""
    self._close(msg.sender, payee)


@external
@nonreentrant
def close_for(account: address, payee: address, terms: requests.Terms, fee: uint256, sig: signatures.Sig):
    """As `close`, relayed."""
    balances._take_request(account, money_requests._close(account, payee, terms), terms, fee, sig)
    self._close(account, payee)


@external
@nonreentrant
def finish(payer: address, payee: address):
    """After the delay: what is left of a closing tab is the payer's balance. Anyone may send it. The tab can be used again."""
    tab: words.Tab = words._tab(self.tabs[payer][payee])
    assert tab.closesAt != 0 and block.timestamp > tab.closesAt, "early"
    left: uint256 = tab.locked - tab.paid
    tab.locked = tab.paid
    tab.closesAt = 0
    self.tabs[payer][payee] = words._tab_word(tab)
    balances._credit(payer, left)
    log Closed(payer=payer, payee=payee, amount=left)


# --------------------------------------------------------------------------------------------------------------- views


@external
@view
def tab(payer: address, payee: address) -> words.Tab:
    """One tab as it stands."""
    return words._tab(self.tabs[payer][payee])


@external
@view
def session(payer: address, payee: address, key: address) -> (uint256, uint256):
    """Up to which sum a session key signs, and until when; zeros if it was never shown."""
    return words._session(self.sessions[payer][payee][key])


# ------------------------------------------------------------------------------------------------------------ internal


@internal
def _deposit(amount: uint256, payee: address):
    balances._pull(amount)
    if payee != empty(address):
        self._lock(msg.sender, payee, amount)


@internal
def _lock(payer: address, payee: address, amount: uint256):
    balances._debit(payer, amount)
    tab: words.Tab = words._tab(self.tabs[payer][payee])
    assert amount > 0 and payer != payee and tab.locked + amount <= words.AMOUNT_MAX, "amount"
    assert tab.closesAt == 0, "closing"
    tab.locked += amount
    self.tabs[payer][payee] = words._tab_word(tab)
    log Locked(payer=payer, payee=payee, amount=amount)


@internal
def _close(payer: address, payee: address):
    word: uint256 = self.tabs[payer][payee]
    tab: words.Tab = words._tab(word)
    assert word != 0 and tab.closesAt == 0, "closing"
    is_coordinator: bool = staticcall Stakes(balances.STAKES).posting_key(payer) != empty(address)
    tab.closesAt = block.timestamp + (COORDINATOR_CLOSE if is_coordinator else CLIENT_CLOSE)
    self.tabs[payer][payee] = words._tab_word(tab)
    log Closing(payer=payer, payee=payee, closesAt=tab.closesAt)


@internal
def _show(domain: bytes32, payee: address, shown: SignedSession):
    """Each bound of a session key only grows, so showing a session ends no voucher."""
    digest: bytes32 = keccak256(abi_encode(SESSION_TYPE, shown.payer, shown.sessionKey, payee, shown.upTo, shown.expires))
    assert signatures._signer(signatures._digest(domain, digest), shown.sig) == shown.payer, "session"
    word: uint256 = self.sessions[shown.payer][payee][shown.sessionKey]
    word = words._grown(word, convert(shown.upTo, uint256), convert(shown.expires, uint256))
    self.sessions[shown.payer][payee][shown.sessionKey] = word
    upTo: uint256 = 0
    expires: uint256 = 0
    upTo, expires = words._session(word)
    log SessionShown(payer=shown.payer, payee=payee, key=shown.sessionKey, upTo=upTo, expires=expires)


@internal
def _redeem(domain: bytes32, payee: address, voucher: SignedVoucher, isCredit: bool) -> uint256:
    """What a voucher adds. What is not locked stays due: the same voucher pays it once more is locked."""
    payer: address = empty(address)
    cumulative: uint256 = 0
    payer, cumulative = words._pair(voucher.debt)
    digest: bytes32 = signatures._digest(domain, keccak256(abi_encode(VOUCHER_TYPE, payer, payee, cumulative)))
    self._check_key(payer, payee, cumulative, signatures._signer(digest, voucher.sig))
    tab: words.Tab = words._tab(self.tabs[payer][payee])
    covered: uint256 = min(cumulative, tab.locked)
    if covered <= tab.paid:
        return 0
    added: uint256 = covered - tab.paid
    tab.paid = covered
    if not isCredit:
        tab.drawn += added
    self.tabs[payer][payee] = words._tab_word(tab)
    log Redeemed(payer=payer, payee=payee, paid=covered)
    return added


@internal
@view
def _check_key(payer: address, payee: address, cumulative: uint256, key: address):
    """A session counts for as long after its end as its tab takes to close; so does a statement key that was replaced."""
    word: uint256 = self.sessions[payer][payee][key]
    since: uint256 = 0
    until: uint256 = 0
    if word != 0:
        upTo: uint256 = 0
        upTo, until = words._session(word)
        assert block.timestamp <= until + CLIENT_CLOSE, "expired"
        assert cumulative <= upTo, "amount"
        return
    assert staticcall Stakes(balances.STAKES).posting_key(payer) != empty(address), "voucher"
    since, until = staticcall Stakes(balances.STAKES).key_range(payer, key)
    assert until != 0, "voucher"
    assert block.timestamp <= until + COORDINATOR_CLOSE, "expired"
