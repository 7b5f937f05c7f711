# pragma version 0.4.3
"""
@title Epochs
@notice Optimistic settlement: now and then a coordinator posts one Merkle-sum root of all its cumulative credits, with the
        clients' vouchers. Claims are paid against the newest final root only (PROTOCOL §6).
@dev An epoch is final once its window is over. The ring keeps the newest ones, the newest final one always among them.
"""

import leaves
import signatures

interface Stakes:
    def posting_key(account: address) -> address: view
    def payout_of(account: address) -> address: view
    def bond_of(account: address) -> uint256: view
    def is_bonded(coordinator: address) -> bool: view

interface Escrow:
    def charge(coordinator: address, debts: DynArray[uint256, LISTED_MAX]) -> Pool: nonpayable
    def pay(coordinator: address, payments: DynArray[uint256, LISTED_MAX]): nonpayable

struct Pool:
    allocated: uint256
    charged: uint256
    paid: uint256

struct SignedSession:
    client: address
    sessionKey: address
    upTo: uint128
    expires: uint64
    sig: signatures.Sig  # by the client's account

struct SignedVoucher:
    debt: uint256  # client(160) | cumulative(96)
    sig: signatures.Sig  # by the session key

struct KnownSession:
    sessionKey: address
    upTo: uint256
    expires: uint256

event EpochPosted:
    coordinator: indexed(address)
    epoch: uint256
    root: bytes32
    sumFinal: uint256
    sumHeld: uint256
    charged: uint256

event Claimed:
    coordinator: indexed(address)
    account: indexed(address)
    receiver: address
    amount: uint256
    epoch: uint256

event Announced:
    coordinator: indexed(address)
    peerKey: bytes32
    addresses: Bytes[ADDRESSES_MAX]

LISTED_MAX: constant(uint256) = 64  # vouchers of one epoch, leaves of one claim
DEPTH_MAX: constant(uint256) = 32
ADDRESSES_MAX: constant(uint256) = 512  # bytes of all addresses of an announcement
RING: constant(uint256) = 256  # epochs kept per coordinator: ten days of one an hour
MASK36: constant(uint256) = 2**36 - 1
MASK40: constant(uint256) = 2**40 - 1
MASK60: constant(uint256) = 2**60 - 1
MASK88: constant(uint256) = 2**88 - 1
MASK96: constant(uint256) = 2**96 - 1
SESSION_TYPE: constant(bytes32) = keccak256("Session(address client,address sessionKey,address coordinator,uint128 upTo,uint64 expires)")
VOUCHER_TYPE: constant(bytes32) = keccak256("Voucher(address payer,address payee,uint128 cumulative)")

STAKES: public(immutable(address))
ESCROW: public(immutable(address))
CHALLENGE_WINDOW: public(immutable(uint256))

newest: public(HashMap[address, uint256])  # number of a coordinator's newest epoch; 0 before the first
claimed: public(HashMap[address, HashMap[address, uint256]])  # coordinator -> account -> cumulative
roots: HashMap[address, HashMap[uint256, bytes32]]
infos: HashMap[address, HashMap[uint256, uint256]]  # number(40) | postedAt(40) | sumFinal(88) | sumHeld(88)
sessions: HashMap[bytes32, HashMap[address, uint256]]  # H(domain, coordinator) -> client -> sessionKey(160) | upTo(60) | expires(36)


@deploy
def __init__(stakes: address, escrow: address, challengeWindow: uint256):
    """`challengeWindow` in seconds: an epoch is final that long after its block."""
    STAKES = stakes
    ESCROW = escrow
    CHALLENGE_WINDOW = challengeWindow


@external
def post(coordinator: address, number: uint256, root: bytes32, sumFinal: uint256, sumHeld: uint256, sessions: DynArray[SignedSession, LISTED_MAX], vouchers: DynArray[SignedVoucher, LISTED_MAX]):
    """
    @notice The next epoch of a coordinator, sent by its posting key.
    @dev Refused: a gap in the numbers, a falling sum of final credits, final credits above what vouchers brought in, all credits
         above the allocations, a pace that would push the newest final epoch out of the ring, a coordinator without its bond.
    @param sessions those that vouchers need and that are not the ones remembered already
    """
    assert staticcall Stakes(STAKES).posting_key(coordinator) == msg.sender, "signer"
    assert staticcall Stakes(STAKES).is_bonded(coordinator), "bond"
    assert number == self.newest[coordinator] + 1 and number <= MASK40, "epoch"
    last: uint256 = self._info(coordinator, number - 1)
    assert root != empty(bytes32) and sumFinal <= MASK88 and sumHeld <= MASK88, "amount"
    assert sumFinal >= (last >> 88) & MASK88, "stale"
    assert number < RING or self._is_final(self._info(coordinator, number + 1 - RING)), "early"
    domain: bytes32 = signatures._domain(STAKES)
    remembered: bytes32 = keccak256(abi_encode(domain, coordinator))
    for each: SignedSession in sessions:
        session: bytes32 = keccak256(abi_encode(SESSION_TYPE, each.client, each.sessionKey, coordinator, each.upTo, each.expires))
        assert signatures._signer(signatures._digest(domain, session), each.sig) == each.client, "session"
        # What does not fit its bits is cut down, which only ever refuses more
        terms: uint256 = (min(convert(each.upTo, uint256), MASK60) << 36) | min(convert(each.expires, uint256), MASK36)
        self.sessions[remembered][each.client] = (convert(each.sessionKey, uint256) << 96) | terms
    debts: DynArray[uint256, LISTED_MAX] = []
    for each: SignedVoucher in vouchers:
        client: address = convert(each.debt >> 96, address)
        cumulative: uint256 = each.debt & MASK96
        session: uint256 = self.sessions[remembered][client]
        assert session != 0, "session"
        assert block.timestamp <= session & MASK36, "expired"
        assert cumulative <= (session >> 36) & MASK60, "amount"
        voucher: bytes32 = keccak256(abi_encode(VOUCHER_TYPE, client, coordinator, cumulative))
        assert signatures._signer(signatures._digest(domain, voucher), each.sig) == convert(session >> 96, address), "voucher"
        debts.append(each.debt)
    pool: Pool = extcall Escrow(ESCROW).charge(coordinator, debts)
    assert sumFinal <= pool.charged, "pool"
    assert sumFinal + sumHeld <= pool.allocated, "allocation"
    self.roots[coordinator][number % RING] = root
    self.infos[coordinator][number % RING] = (number << 216) | (block.timestamp << 176) | (sumFinal << 88) | sumHeld
    self.newest[coordinator] = number
    log EpochPosted(coordinator=coordinator, epoch=number, root=root, sumFinal=sumFinal, sumHeld=sumHeld, charged=pool.charged)


@external
def claim(coordinator: address, number: uint256, leaf: leaves.Leaf, position: uint256, proof: DynArray[leaves.Sibling, DEPTH_MAX]):
    """
    @notice Pays what a leaf of the newest final epoch credits beyond earlier claims, to the provider's payout address or to the
            account itself. Anyone may send it.
    @param position the leaf's place in the tree: bit k says on which side the k-th sibling stands
    """
    info: uint256 = self._claimable(coordinator, number)
    leaves._check_inclusion(self.roots[coordinator][number % RING], (info >> 88) & MASK88, info & MASK88, leaves._node(leaf), position, proof)
    payment: uint256 = self._credit(coordinator, number, leaf)
    assert payment != 0, "amount"
    extcall Escrow(ESCROW).pay(coordinator, [payment])


@external
def claim_many(coordinator: address, number: uint256, listed: DynArray[leaves.Leaf, LISTED_MAX], position: uint256, proof: DynArray[leaves.Sibling, DEPTH_MAX]):
    """
    @notice `claim` for all leaves of one subtree at once: neighbours need no proofs of their own. Leaves without anything new
            are passed over, so that a claim of one of them beforehand does not spoil the rest.
    @param listed the subtree's, in order; at the end of the tree without its padding
    @param position the subtree's place among those of its size
    """
    info: uint256 = self._claimable(coordinator, number)
    leaves._check_inclusion(self.roots[coordinator][number % RING], (info >> 88) & MASK88, info & MASK88, leaves._subtree(listed), position, proof)
    payments: DynArray[uint256, LISTED_MAX] = []
    for leaf: leaves.Leaf in listed:
        payment: uint256 = self._credit(coordinator, number, leaf)
        if payment != 0:
            payments.append(payment)
    assert len(payments) > 0, "amount"
    extcall Escrow(ESCROW).pay(coordinator, payments)


@external
def announce(coordinator: address, peerKey: bytes32, addresses: Bytes[ADDRESSES_MAX]):
    """
    @notice Where peers reach a coordinator, for programs that know only the chain. Sent by its posting key while its bond is here.
    @dev Only logged: the newest one counts, and nothing on chain reads it. The peer key is no proof; the coordinator's statement key
         signs it too, when a peer connects.
    @param addresses multiaddrs, one a line. Bytes and not a string, so that no text can be one that programs fail to decode
    """
    assert staticcall Stakes(STAKES).posting_key(coordinator) == msg.sender, "signer"
    assert staticcall Stakes(STAKES).bond_of(coordinator) > 0, "registered"
    log Announced(coordinator=coordinator, peerKey=peerKey, addresses=addresses)


# --------------------------------------------------------------------------------------------------------------- views


@external
@view
def session(coordinator: address, client: address) -> KnownSession:
    """The session that vouchers of this client are checked against unless a post brings another one; zeros before the first."""
    word: uint256 = self.sessions[keccak256(abi_encode(signatures._domain(STAKES), coordinator))][client]
    return KnownSession(sessionKey=convert(word >> 96, address), upTo=(word >> 36) & MASK60, expires=word & MASK36)


@external
@view
def epoch(coordinator: address, number: uint256) -> leaves.Epoch:
    """One epoch; all zero when it never was or has left the ring."""
    return self._epoch(coordinator, self._info(coordinator, number))


@external
@view
def newest_final(coordinator: address) -> leaves.Epoch:
    """The epoch that claims are paid against; all zero while none is final."""
    newest: uint256 = self.newest[coordinator]
    for k: uint256 in range(RING):
        if k >= newest:
            break
        info: uint256 = self._info(coordinator, newest - k)
        if self._is_final(info):
            return self._epoch(coordinator, info)
    return empty(leaves.Epoch)


# ------------------------------------------------------------------------------------------------------------- internal


@internal
@view
def _info(coordinator: address, number: uint256) -> uint256:
    """The word of an epoch; 0 when it never was or has left the ring."""
    info: uint256 = self.infos[coordinator][number % RING]
    return info if info >> 216 == number else 0


@internal
@view
def _epoch(coordinator: address, info: uint256) -> leaves.Epoch:
    if info == 0:
        return empty(leaves.Epoch)
    number: uint256 = info >> 216
    return leaves.Epoch(root=self.roots[coordinator][number % RING], number=number, postedAt=(info >> 176) & MASK40, sumFinal=(info >> 88) & MASK88, sumHeld=info & MASK88)


@internal
@view
def _is_final(info: uint256) -> bool:
    """Whether the window of an epoch is over."""
    return info != 0 and block.timestamp >= ((info >> 176) & MASK40) + CHALLENGE_WINDOW


@internal
@view
def _claimable(coordinator: address, number: uint256) -> uint256:
    """The info word of an epoch if it is the newest final one."""
    info: uint256 = self._info(coordinator, number)
    assert number > 0 and self._is_final(info), "early"
    assert not self._is_final(self._info(coordinator, number + 1)), "stale"
    return info


@internal
def _credit(coordinator: address, number: uint256, leaf: leaves.Leaf) -> uint256:
    """Notes what a proven leaf has coming and returns receiver(160) | amount(96); 0 if it is nothing."""
    credit: uint256 = leaf.sums >> 128
    before: uint256 = self.claimed[coordinator][leaf.account]
    if credit <= before or leaf.account == empty(address):  # the audit fund's leaf is nobody's
        return 0
    self.claimed[coordinator][leaf.account] = credit
    receiver: address = staticcall Stakes(STAKES).payout_of(leaf.account)
    if receiver == empty(address):
        receiver = leaf.account
    log Claimed(coordinator=coordinator, account=leaf.account, receiver=receiver, amount=credit - before, epoch=number)
    return (convert(receiver, uint256) << 96) | (credit - before)  # a proven sum has at most 88 bits
