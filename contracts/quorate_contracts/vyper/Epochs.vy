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

interface Escrow:
    def charge(client: address, coordinator: address, cumulative: uint256): nonpayable
    def pool(coordinator: address) -> Pool: view
    def pay(coordinator: address, receiver: address, amount: uint256): nonpayable

struct Pool:
    allocated: uint256
    charged: uint256
    paid: uint256

struct SignedVoucher:
    client: address
    sessionKey: address
    upTo: uint128
    expires: uint64
    sessionSig: signatures.Sig  # the client's account signed the Session
    cumulative: uint128
    nonceFloor: uint256
    sig: signatures.Sig  # the session key signed the Voucher

struct Sibling:
    hash: bytes32
    final: uint128
    held: uint128

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

VOUCHERS_MAX: constant(uint256) = 64
DEPTH_MAX: constant(uint256) = 32
RING: constant(uint256) = 32  # epochs kept per coordinator
MASK32: constant(uint256) = 2**32 - 1
MASK48: constant(uint256) = 2**48 - 1
MASK88: constant(uint256) = 2**88 - 1
SESSION_TYPE: constant(bytes32) = keccak256("Session(address client,address sessionKey,address coordinator,uint128 upTo,uint64 expires)")
VOUCHER_TYPE: constant(bytes32) = keccak256("Voucher(address client,address coordinator,uint128 cumulative,uint256 nonceFloor)")

STAKES: public(immutable(address))
ESCROW: public(immutable(address))
CHALLENGE_WINDOW: public(immutable(uint256))

newest: public(HashMap[address, uint256])  # coordinator -> number of the newest epoch, from 1
claimed: public(HashMap[address, HashMap[address, uint256]])  # coordinator -> account -> cumulative
roots: HashMap[address, HashMap[uint256, bytes32]]
infos: HashMap[address, HashMap[uint256, uint256]]  # number(32) | postedAt(48) | sumFinal(88) | sumHeld(88)


@deploy
def __init__(stakes: address, escrow: address, challengeWindow: uint256):
    """`challengeWindow` in seconds: an epoch is final that long after its block."""
    STAKES = stakes
    ESCROW = escrow
    CHALLENGE_WINDOW = challengeWindow


@external
def post(coordinator: address, number: uint256, root: bytes32, sumFinal: uint256, sumHeld: uint256, vouchers: DynArray[SignedVoucher, VOUCHERS_MAX]):
    """
    @notice The next epoch of a coordinator, sent by its posting key.
    @dev Refused: a gap in the numbers, a falling sum of final credits, final credits above what vouchers brought in, all credits
         above the allocations, and a pace that would push the newest final epoch out of the ring.
    """
    assert staticcall Stakes(STAKES).posting_key(coordinator) == msg.sender, "signer"
    last: uint256 = self.newest[coordinator]
    assert number == last + 1 and number <= MASK32, "epoch"
    assert root != empty(bytes32) and sumFinal <= MASK88 and sumHeld <= MASK88, "amount"
    if last > 0:
        assert sumFinal >= (self.infos[coordinator][last % RING] >> 88) & MASK88, "stale"
    if number >= RING:
        assert self._is_past(self.infos[coordinator][(number + 1) % RING]), "early"
    # Both signatures of every voucher: the account's under the session, the session key's under the voucher. One by one and in
    # place: a list in memory would be reserved at its full bound, which is also why VOUCHERS_MAX is no larger
    domain: bytes32 = signatures._domain(STAKES)
    for each: SignedVoucher in vouchers:
        assert block.timestamp <= convert(each.expires, uint256), "expired"
        assert each.cumulative <= each.upTo, "amount"
        session: bytes32 = keccak256(abi_encode(SESSION_TYPE, each.client, each.sessionKey, coordinator, each.upTo, each.expires))
        assert signatures._signer(signatures._digest(domain, session), each.sessionSig) == each.client, "session"
        voucher: bytes32 = keccak256(abi_encode(VOUCHER_TYPE, each.client, coordinator, each.cumulative, each.nonceFloor))
        assert signatures._signer(signatures._digest(domain, voucher), each.sig) == each.sessionKey, "voucher"
        extcall Escrow(ESCROW).charge(each.client, coordinator, convert(each.cumulative, uint256))
    pool: Pool = staticcall Escrow(ESCROW).pool(coordinator)
    assert sumFinal <= pool.charged, "pool"
    assert sumFinal + sumHeld <= pool.allocated, "allocation"
    self.newest[coordinator] = number
    self.roots[coordinator][number % RING] = root
    self.infos[coordinator][number % RING] = (number << 224) | (block.timestamp << 176) | (sumFinal << 88) | sumHeld
    log EpochPosted(coordinator=coordinator, epoch=number, root=root, sumFinal=sumFinal, sumHeld=sumHeld, charged=pool.charged)


@external
def claim(coordinator: address, number: uint256, index: uint256, account: address, final: uint128, held: uint128, receiptsRoot: bytes32, position: uint256, proof: DynArray[Sibling, DEPTH_MAX]):
    """
    @notice Pays what a leaf of the newest final epoch credits beyond earlier claims, to the provider's payout address or to the
            account itself. Anyone may send it.
    @param position the leaf's place in the tree: bit k says on which side the k-th sibling stands
    """
    info: uint256 = self.infos[coordinator][number % RING]
    assert number > 0 and info >> 224 == number and self._is_past(info), "early"
    if number < self.newest[coordinator]:
        assert not self._is_past(self.infos[coordinator][(number + 1) % RING]), "stale"
    leaf: bytes32 = keccak256(abi_encode(index, account, final, held, receiptsRoot))
    self._check_inclusion(self.roots[coordinator][number % RING], info, leaf, final, held, position, proof)
    before: uint256 = self.claimed[coordinator][account]
    assert convert(final, uint256) > before, "amount"
    amount: uint256 = convert(final, uint256) - before
    self.claimed[coordinator][account] = convert(final, uint256)
    receiver: address = staticcall Stakes(STAKES).payout_of(account)
    if receiver == empty(address):
        receiver = account
    extcall Escrow(ESCROW).pay(coordinator, receiver, amount)
    log Claimed(coordinator=coordinator, account=account, receiver=receiver, amount=amount, epoch=number)


@external
@view
def epoch(coordinator: address, number: uint256) -> Epoch:
    """One epoch; all zero when it never was or has left the ring."""
    return self._epoch(coordinator, number)


@external
@view
def newest_final(coordinator: address) -> Epoch:
    """The epoch that claims are paid against; all zero while none is final."""
    number: uint256 = self.newest[coordinator]
    for _: uint256 in range(RING):
        if number == 0 or self._is_past(self.infos[coordinator][number % RING]):
            break
        number -= 1
    return self._epoch(coordinator, number)


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
@pure
def _check_inclusion(root: bytes32, info: uint256, leaf: bytes32, final: uint128, held: uint128, position: uint256, proof: DynArray[Sibling, DEPTH_MAX]):
    """The leaf climbs to the root, and the sums on its way are those that were posted."""
    hash: bytes32 = leaf
    sumFinal: uint256 = convert(final, uint256)
    sumHeld: uint256 = convert(held, uint256)
    side: uint256 = position
    for sibling: Sibling in proof:
        if side & 1 == 0:
            hash = keccak256(abi_encode(hash, sumFinal, sumHeld, sibling.hash, sibling.final, sibling.held))
        else:
            hash = keccak256(abi_encode(sibling.hash, sibling.final, sibling.held, hash, sumFinal, sumHeld))
        sumFinal += convert(sibling.final, uint256)
        sumHeld += convert(sibling.held, uint256)
        side >>= 1
    assert side == 0 and hash == root, "proof"
    assert sumFinal == (info >> 88) & MASK88 and sumHeld == info & MASK88, "sums"
