# pragma version 0.4.3
"""
@title Epochs
@notice Optimistic settlement: now and then a coordinator posts one Merkle-sum root of all its cumulative credits, with the
        clients' vouchers. Claims are paid against the newest final root only (PROTOCOL §6).
@dev Tree: leaf = H(index, account, final, held, receiptsRoot), node = H(left, leftFinal, leftHeld, right, rightFinal, rightHeld), leaves in
     the order of their registration index, padded with zero hashes and sums to a power of two. A leaf has five words and a
     node six, so neither passes for the other.
"""

import signatures

interface Stakes:
    def posting_key(account: address) -> address: view
    def payout_of(account: address) -> address: view
    def bond_of(account: address) -> uint256: view

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
    nonceFloor: uint256
    sig: signatures.Sig  # by the session key

struct KnownSession:
    sessionKey: address
    upTo: uint256
    expires: uint256

struct Leaf:
    index: uint256
    account: address
    sums: uint256  # final(128) | held(128)
    receiptsRoot: bytes32

struct Sibling:
    hash: bytes32
    sums: uint256  # final(128) | held(128)

struct Node:
    hash: bytes32
    final: uint256
    held: uint256

struct Epoch:
    root: bytes32
    number: uint256
    postedAt: uint256
    sumFinal: uint256
    sumHeld: uint256

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
RING: constant(uint256) = 32  # epochs kept per coordinator
MASK32: constant(uint256) = 2**32 - 1
MASK36: constant(uint256) = 2**36 - 1
MASK48: constant(uint256) = 2**48 - 1
MASK60: constant(uint256) = 2**60 - 1
MASK88: constant(uint256) = 2**88 - 1
MASK96: constant(uint256) = 2**96 - 1
MASK128: constant(uint256) = 2**128 - 1
SESSION_TYPE: constant(bytes32) = keccak256("Session(address client,address sessionKey,address coordinator,uint128 upTo,uint64 expires)")
VOUCHER_TYPE: constant(bytes32) = keccak256("Voucher(address client,address coordinator,uint128 cumulative,uint256 nonceFloor)")

STAKES: public(immutable(address))
ESCROW: public(immutable(address))
CHALLENGE_WINDOW: public(immutable(uint256))

claimed: public(HashMap[address, HashMap[address, uint256]])  # coordinator -> account -> cumulative
roots: HashMap[address, HashMap[uint256, bytes32]]
infos: HashMap[address, HashMap[uint256, uint256]]  # number(32) | postedAt(48) | sumFinal(88) | sumHeld(88)
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
         above the allocations, and a pace that would push the newest final epoch out of the ring.
    @param sessions those that vouchers need and that are not the ones remembered already
    """
    assert staticcall Stakes(STAKES).posting_key(coordinator) == msg.sender, "signer"
    # In the ring the one before and not yet this one: so `number` is the next. No slot of its own counts the epochs
    last: uint256 = self.infos[coordinator][(number - 1) % RING] if number > 1 else 0
    assert number > 0 and number <= MASK32 and last >> 224 == number - 1, "epoch"
    assert self.infos[coordinator][number % RING] >> 224 < number, "epoch"
    assert root != empty(bytes32) and sumFinal <= MASK88 and sumHeld <= MASK88, "amount"
    assert sumFinal >= (last >> 88) & MASK88, "stale"
    if number >= RING:
        assert self._is_past(self.infos[coordinator][(number + 1) % RING]), "early"
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
        voucher: bytes32 = keccak256(abi_encode(VOUCHER_TYPE, client, coordinator, cumulative, each.nonceFloor))
        assert signatures._signer(signatures._digest(domain, voucher), each.sig) == convert(session >> 96, address), "voucher"
        debts.append(each.debt)
    pool: Pool = extcall Escrow(ESCROW).charge(coordinator, debts)
    assert sumFinal <= pool.charged, "pool"
    assert sumFinal + sumHeld <= pool.allocated, "allocation"
    self.roots[coordinator][number % RING] = root
    self.infos[coordinator][number % RING] = (number << 224) | (block.timestamp << 176) | (sumFinal << 88) | sumHeld
    log EpochPosted(coordinator=coordinator, epoch=number, root=root, sumFinal=sumFinal, sumHeld=sumHeld, charged=pool.charged)


@external
def claim(coordinator: address, number: uint256, leaf: Leaf, position: uint256, proof: DynArray[Sibling, DEPTH_MAX]):
    """
    @notice Pays what a leaf of the newest final epoch credits beyond earlier claims, to the provider's payout address or to the
            account itself. Anyone may send it.
    @param position the leaf's place in the tree: bit k says on which side the k-th sibling stands
    """
    info: uint256 = self._claimable(coordinator, number)
    self._check_inclusion(self.roots[coordinator][number % RING], info, self._node(leaf), position, proof)
    payment: uint256 = self._credit(coordinator, number, leaf)
    assert payment != 0, "amount"
    extcall Escrow(ESCROW).pay(coordinator, [payment])


@external
def claim_many(coordinator: address, number: uint256, leaves: DynArray[Leaf, LISTED_MAX], position: uint256, proof: DynArray[Sibling, DEPTH_MAX]):
    """
    @notice `claim` for all leaves of one subtree at once: neighbours need no proofs of their own. Leaves without anything new
            are passed over, so that a claim of one of them beforehand does not spoil the rest.
    @param leaves the subtree's, in order; at the end of the tree without its padding
    @param position the subtree's place among those of its size
    """
    info: uint256 = self._claimable(coordinator, number)
    self._check_inclusion(self.roots[coordinator][number % RING], info, self._subtree(leaves), position, proof)
    payments: DynArray[uint256, LISTED_MAX] = []
    for leaf: Leaf in leaves:
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


@external
@view
def newest(coordinator: address) -> uint256:
    """Number of the newest epoch; 0 before the first."""
    return self._newest(coordinator)


@external
@view
def session(coordinator: address, client: address) -> KnownSession:
    """The session that vouchers of this client are checked against unless a post brings another one; zeros before the first."""
    word: uint256 = self.sessions[keccak256(abi_encode(signatures._domain(STAKES), coordinator))][client]
    return KnownSession(sessionKey=convert(word >> 96, address), upTo=(word >> 36) & MASK60, expires=word & MASK36)


@external
@view
def epoch(coordinator: address, number: uint256) -> Epoch:
    """One epoch; all zero when it never was or has left the ring."""
    return self._epoch(coordinator, number)


@external
@view
def newest_final(coordinator: address) -> Epoch:
    """The epoch that claims are paid against; all zero while none is final."""
    number: uint256 = self._newest(coordinator)
    for _: uint256 in range(RING):
        if number == 0 or self._is_past(self.infos[coordinator][number % RING]):
            break
        number -= 1
    return self._epoch(coordinator, number)


@internal
@view
def _newest(coordinator: address) -> uint256:
    found: uint256 = 0
    for place: uint256 in range(RING):
        found = max(found, self.infos[coordinator][place] >> 224)
    return found


@internal
@view
def _epoch(coordinator: address, number: uint256) -> Epoch:
    info: uint256 = self.infos[coordinator][number % RING]
    if number == 0 or info >> 224 != number:
        return empty(Epoch)
    return Epoch(root=self.roots[coordinator][number % RING], number=number, postedAt=(info >> 176) & MASK48, sumFinal=(info >> 88) & MASK88, sumHeld=info & MASK88)


@internal
@view
def _is_past(info: uint256) -> bool:
    """Whether an epoch's challenge window is over."""
    return block.timestamp >= ((info >> 176) & MASK48) + CHALLENGE_WINDOW


@internal
@view
def _claimable(coordinator: address, number: uint256) -> uint256:
    """The info word of an epoch if it is the newest final one."""
    info: uint256 = self.infos[coordinator][number % RING]
    assert number > 0 and info >> 224 == number and self._is_past(info), "early"
    following: uint256 = self.infos[coordinator][(number + 1) % RING]
    assert following >> 224 <= number or not self._is_past(following), "stale"
    return info


@internal
def _credit(coordinator: address, number: uint256, leaf: Leaf) -> uint256:
    """Notes what a proven leaf has coming and returns receiver(160) | amount(96); 0 if it is nothing."""
    final: uint256 = leaf.sums >> 128
    before: uint256 = self.claimed[coordinator][leaf.account]
    if final <= before or leaf.account == empty(address):  # the audit fund's leaf is nobody's
        return 0
    self.claimed[coordinator][leaf.account] = final
    receiver: address = staticcall Stakes(STAKES).payout_of(leaf.account)
    if receiver == empty(address):
        receiver = leaf.account
    log Claimed(coordinator=coordinator, account=leaf.account, receiver=receiver, amount=final - before, epoch=number)
    return (convert(receiver, uint256) << 96) | (final - before)  # a proven sum has at most 88 bits


@internal
@pure
def _node(leaf: Leaf) -> Node:
    final: uint256 = leaf.sums >> 128
    held: uint256 = leaf.sums & MASK128
    return Node(hash=keccak256(abi_encode(leaf.index, leaf.account, final, held, leaf.receiptsRoot)), final=final, held=held)


@internal
@pure
def _parent(left: Node, right: Node) -> Node:
    hash: bytes32 = keccak256(abi_encode(left.hash, left.final, left.held, right.hash, right.final, right.held))
    return Node(hash=hash, final=left.final + right.final, held=left.held + right.held)


@internal
@pure
def _subtree(leaves: DynArray[Leaf, LISTED_MAX]) -> Node:
    """The node above all leaves: levels are halved in place, and an odd one is filled up with the empty node of its height."""
    level: DynArray[Node, LISTED_MAX] = []
    for leaf: Leaf in leaves:
        level.append(self._node(leaf))
    filler: Node = empty(Node)
    size: uint256 = len(level)
    assert size > 0, "proof"
    for _: uint256 in range(DEPTH_MAX):
        if size == 1:
            break
        half: uint256 = (size + 1) // 2
        for k: uint256 in range(half, bound=LISTED_MAX // 2):
            level[k] = self._parent(level[2 * k], level[2 * k + 1] if 2 * k + 1 < size else filler)
        filler = self._parent(filler, filler)
        size = half
    return level[0]


@internal
@pure
def _check_inclusion(root: bytes32, info: uint256, start: Node, position: uint256, proof: DynArray[Sibling, DEPTH_MAX]):
    """The node climbs to the root, and the sums on its way are those that were posted."""
    hash: bytes32 = start.hash
    final: uint256 = start.final
    held: uint256 = start.held
    side: uint256 = position
    for sibling: Sibling in proof:
        otherFinal: uint256 = sibling.sums >> 128
        otherHeld: uint256 = sibling.sums & MASK128
        if side & 1 == 0:
            hash = keccak256(abi_encode(hash, final, held, sibling.hash, otherFinal, otherHeld))
        else:
            hash = keccak256(abi_encode(sibling.hash, otherFinal, otherHeld, hash, final, held))
        final += otherFinal
        held += otherHeld
        side >>= 1
    assert side == 0 and hash == root, "proof"
    assert final == (info >> 88) & MASK88 and held == info & MASK88, "sums"
