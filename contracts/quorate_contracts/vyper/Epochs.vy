# pragma version 0.4.3
"""
@title Epochs
@notice Optimistic settlement: now and then a coordinator posts one Merkle-sum root of all its cumulative credits, with the
        clients' vouchers. Claims are paid against the newest final root only (PROTOCOL §6).
@dev Until its window is over, and while it or an older one has an open demand, `Challenges` can void an epoch and all after it. Their
     numbers are not used again; the vouchers that they brought stay in the pool. The ring has no word of a void epoch.
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
    def pool(coordinator: address) -> Pool: view

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

struct Share:
    held: uint256  # of all held credits; 0 = they are not paid
    backed: uint256  # as much of them as vouchers brought in

struct Head:
    newest: uint256  # number of the newest epoch, void ones included
    valid: uint256  # number of the newest one that is not void; 0 = none
    demands: uint256  # open ones
    floor: uint256  # while there are any, no epoch from this number on becomes final
    haltedAt: uint256  # 0 = not halted

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

event EpochsVoided:
    coordinator: indexed(address)
    first: uint256
    last: uint256
    valid: uint256  # the newest epoch that counts now; 0 = none

event Halted:
    coordinator: indexed(address)
    epoch: uint256  # the newest one that counts

event Announced:
    coordinator: indexed(address)
    peerKey: bytes32
    addresses: Bytes[ADDRESSES_MAX]

LISTED_MAX: constant(uint256) = 64  # vouchers of one epoch, leaves of one claim
DEPTH_MAX: constant(uint256) = 32
ADDRESSES_MAX: constant(uint256) = 512  # bytes of all addresses of an announcement
RING: constant(uint256) = 256  # epochs kept per coordinator: ten days of one an hour
GAP_MAX: constant(uint256) = 255
MASK31: constant(uint256) = 2**31 - 1
MASK32: constant(uint256) = 2**32 - 1
MASK36: constant(uint256) = 2**36 - 1
MASK40: constant(uint256) = 2**40 - 1
MASK48: constant(uint256) = 2**48 - 1
MASK60: constant(uint256) = 2**60 - 1
MASK88: constant(uint256) = 2**88 - 1
MASK96: constant(uint256) = 2**96 - 1
MASK128: constant(uint256) = 2**128 - 1
SESSION_TYPE: constant(bytes32) = keccak256("Session(address client,address sessionKey,address coordinator,uint128 upTo,uint64 expires)")
VOUCHER_TYPE: constant(bytes32) = keccak256("Voucher(address client,address coordinator,uint128 cumulative,uint256 nonceFloor)")

STAKES: public(immutable(address))
ESCROW: public(immutable(address))
CHALLENGES: public(immutable(address))
CHALLENGE_WINDOW: public(immutable(uint256))
HALT_SETTLE: public(immutable(uint256))
HALT_HELD: public(immutable(uint256))

claimed: public(HashMap[address, HashMap[address, uint256]])  # coordinator -> account -> cumulative
roots: HashMap[address, HashMap[uint256, bytes32]]
infos: HashMap[address, HashMap[uint256, uint256]]  # number(31) | isExhausted(1) | gap(8) | postedAt(40) | sumFinal(88) | sumHeld(88); gap: to the one before
heads: HashMap[address, uint256]  # newest(32) | valid(32) | demands(32) | floor(32) | haltedAt(48), from bit 80 on
demanded: HashMap[address, HashMap[uint256, uint256]]  # coordinator -> epoch -> open demands
keptRoots: HashMap[address, bytes32]  # the newest final epoch, once its place in the ring is taken
keptInfos: HashMap[address, uint256]
sessions: HashMap[bytes32, HashMap[address, uint256]]  # H(domain, coordinator) -> client -> sessionKey(160) | upTo(60) | expires(36)


@deploy
def __init__(stakes: address, escrow: address, challenges: address, challengeWindow: uint256, haltSettle: uint256, haltHeld: uint256):
    """`challengeWindow` in seconds: an epoch is final that long after its block. After a halt `haltSettle` and `haltHeld` count."""
    STAKES = stakes
    ESCROW = escrow
    CHALLENGES = challenges
    CHALLENGE_WINDOW = challengeWindow
    HALT_SETTLE = haltSettle
    HALT_HELD = haltHeld


@external
def post(coordinator: address, number: uint256, root: bytes32, sumFinal: uint256, sumHeld: uint256, sessions: DynArray[SignedSession, LISTED_MAX], vouchers: DynArray[SignedVoucher, LISTED_MAX]):
    """
    @notice The next epoch of a coordinator, sent by its posting key.
    @dev Refused: a gap in the numbers, a falling sum of final credits, final credits above what vouchers brought in, all credits
         above the allocations, a pace that would push an epoch out of the ring before it is final, a coordinator without its bond,
         and one that was halted.
    @param sessions those that vouchers need and that are not the ones remembered already
    """
    assert staticcall Stakes(STAKES).posting_key(coordinator) == msg.sender, "signer"
    assert staticcall Stakes(STAKES).is_bonded(coordinator), "bond"
    head: Head = self._head(coordinator)
    assert head.haltedAt == 0, "halted"
    assert number == head.newest + 1 and number <= MASK31, "epoch"
    last: uint256 = self._info(coordinator, head.valid)
    assert root != empty(bytes32) and sumFinal <= MASK88 and sumHeld <= MASK88, "amount"
    assert sumFinal >= (last >> 88) & MASK88, "stale"
    self._make_room(coordinator, number, head)
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
        debts.append((each.debt >> 96 << 96) | (min(each.nonceFloor, MASK36) << 60) | cumulative)
    pool: Pool = extcall Escrow(ESCROW).charge(coordinator, debts)
    assert sumFinal <= pool.charged, "pool"
    assert sumFinal + sumHeld <= pool.allocated, "allocation"
    self.roots[coordinator][number % RING] = root
    exhausted: uint256 = 1 if sumFinal == pool.charged else 0
    gap: uint256 = min(number - head.valid, GAP_MAX)
    self.infos[coordinator][number % RING] = (number << 225) | (exhausted << 224) | (gap << 216) | (block.timestamp << 176) | (sumFinal << 88) | sumHeld
    head.newest = number
    head.valid = number
    self._set_head(coordinator, head)
    log EpochPosted(coordinator=coordinator, epoch=number, root=root, sumFinal=sumFinal, sumHeld=sumHeld, charged=pool.charged)


@external
def claim(coordinator: address, number: uint256, leaf: leaves.Leaf, position: uint256, proof: DynArray[leaves.Sibling, DEPTH_MAX]):
    """
    @notice Pays what a leaf of the newest final epoch credits beyond earlier claims, to the provider's payout address or to the
            account itself. Anyone may send it.
    @param position the leaf's place in the tree: bit k says on which side the k-th sibling stands
    """
    info: uint256 = self._claimable(coordinator, number)
    leaves._check_inclusion(self._root(coordinator, number), (info >> 88) & MASK88, info & MASK88, leaves._node(leaf), position, proof)
    payment: uint256 = self._credit(coordinator, number, leaf, self._share(coordinator, number, info))
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
    leaves._check_inclusion(self._root(coordinator, number), (info >> 88) & MASK88, info & MASK88, leaves._subtree(listed), position, proof)
    share: Share = self._share(coordinator, number, info)
    payments: DynArray[uint256, LISTED_MAX] = []
    for leaf: leaves.Leaf in listed:
        payment: uint256 = self._credit(coordinator, number, leaf, share)
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


# ---------------------------------------------------------------------------------------------------------- challenges


@external
def hold(coordinator: address, number: uint256):
    """Challenges only: a demand is open, so neither this epoch nor a later one becomes final."""
    assert msg.sender == CHALLENGES, "challenges"
    info: uint256 = self._info(coordinator, number)
    assert info != 0, "epoch"
    assert not self._is_past(info), "late"
    head: Head = self._head(coordinator)
    head.floor = min(head.floor, number) if head.demands > 0 else number
    head.demands += 1
    self.demanded[coordinator][number] += 1
    self._set_head(coordinator, head)


@external
def lift(coordinator: address, number: uint256):
    """Challenges only: one demand less. Those of an epoch that is void are no longer counted."""
    assert msg.sender == CHALLENGES, "challenges"
    if self.demanded[coordinator][number] == 0:
        return
    head: Head = self._head(coordinator)
    head.demands -= 1
    self.demanded[coordinator][number] -= 1
    self._set_head(coordinator, head)


@external
def void(coordinator: address, number: uint256):
    """Challenges only: an epoch that is not final, and all after it, never were."""
    assert msg.sender == CHALLENGES, "challenges"
    head: Head = self._head(coordinator)
    info: uint256 = self._info(coordinator, number)
    assert info != 0, "epoch"
    assert not self._is_final(info, head), "late"
    head.valid = self._before(coordinator, info)
    for k: uint256 in range(number, head.newest + 1, bound=RING):
        self.infos[coordinator][k % RING] = 0
        open: uint256 = self.demanded[coordinator][k]
        if open > 0:
            head.demands -= open
            self.demanded[coordinator][k] = 0
    self._set_head(coordinator, head)
    log EpochsVoided(coordinator=coordinator, first=number, last=head.newest, valid=head.valid)


@external
def halt(coordinator: address):
    """Challenges only: no more epochs. The newest one that is not void becomes final, its held credits some days later."""
    assert msg.sender == CHALLENGES, "challenges"
    head: Head = self._head(coordinator)
    assert head.haltedAt == 0, "halted"
    head.haltedAt = block.timestamp
    self._set_head(coordinator, head)
    log Halted(coordinator=coordinator, epoch=head.valid)


# --------------------------------------------------------------------------------------------------------------- views


@external
@view
def newest(coordinator: address) -> uint256:
    """Number of the newest epoch, void ones included; 0 before the first."""
    return self._head(coordinator).newest


@external
@view
def head(coordinator: address) -> Head:
    """What is known of all epochs of a coordinator."""
    return self._head(coordinator)


@external
@view
def halted_at(coordinator: address) -> uint256:
    """When a coordinator was halted; 0 = never."""
    return self._head(coordinator).haltedAt


@external
@view
def free_from(coordinator: address) -> uint256:
    """From when on the allocations for a halted coordinator are free; 0 = it is not halted."""
    at: uint256 = self._head(coordinator).haltedAt
    return at + HALT_SETTLE if at != 0 else 0


@external
@view
def rest_of(coordinator: address, charged: uint256) -> uint256:
    """What is left of `charged` once all credits of a halted coordinator's last epoch are paid. Refused until those are final."""
    head: Head = self._head(coordinator)
    assert head.haltedAt != 0 and block.timestamp >= head.haltedAt + HALT_HELD, "early"
    info: uint256 = self._info(coordinator, head.valid)
    assert head.valid == 0 or self._is_final(info, head), "early"
    left: uint256 = charged - ((info >> 88) & MASK88)
    return left - min(left, info & MASK88)


@external
@view
def session(coordinator: address, client: address) -> KnownSession:
    """The session that vouchers of this client are checked against unless a post brings another one; zeros before the first."""
    word: uint256 = self.sessions[keccak256(abi_encode(signatures._domain(STAKES), coordinator))][client]
    return KnownSession(sessionKey=convert(word >> 96, address), upTo=(word >> 36) & MASK60, expires=word & MASK36)


@external
@view
def epoch(coordinator: address, number: uint256) -> leaves.Epoch:
    """One epoch; all zero when it never was, is void, or has left the ring."""
    return self._epoch(coordinator, self._info(coordinator, number))


@external
@view
def newest_valid(coordinator: address) -> leaves.Epoch:
    """The newest epoch that is not void; all zero while there is none."""
    return self._epoch(coordinator, self._info(coordinator, self._head(coordinator).valid))


@external
@view
def newest_final(coordinator: address) -> leaves.Epoch:
    """The epoch that claims are paid against; all zero while none is final."""
    head: Head = self._head(coordinator)
    info: uint256 = self._info(coordinator, head.valid)
    for _: uint256 in range(RING):
        if info == 0 or self._is_final(info, head):
            break
        info = self._info(coordinator, self._before(coordinator, info))
    return self._epoch(coordinator, info)


# ------------------------------------------------------------------------------------------------------------- internal


@internal
@view
def _head(coordinator: address) -> Head:
    word: uint256 = self.heads[coordinator]
    return Head(newest=word >> 224, valid=(word >> 192) & MASK32, demands=(word >> 160) & MASK32, floor=(word >> 128) & MASK32, haltedAt=(word >> 80) & MASK48)


@internal
def _set_head(coordinator: address, head: Head):
    self.heads[coordinator] = (head.newest << 224) | (head.valid << 192) | (head.demands << 160) | (head.floor << 128) | (head.haltedAt << 80)


@internal
@view
def _info(coordinator: address, number: uint256) -> uint256:
    """The word of an epoch; 0 when it never was, is void, or has left the ring without having been the newest final one."""
    info: uint256 = self.infos[coordinator][number % RING]
    if info >> 225 != number:
        info = self.keptInfos[coordinator]
    return info if info >> 225 == number else 0


@internal
@view
def _root(coordinator: address, number: uint256) -> bytes32:
    """The root of an epoch whose word is here."""
    if self.infos[coordinator][number % RING] >> 225 == number:
        return self.roots[coordinator][number % RING]
    return self.keptRoots[coordinator]


@internal
@view
def _before(coordinator: address, info: uint256) -> uint256:
    """The number of the newest epoch that is not void and older than this one; 0 = none."""
    number: uint256 = info >> 225
    before: uint256 = number - min((info >> 216) & GAP_MAX, number)
    if before != 0 and self.infos[coordinator][before % RING] >> 225 == before:
        return before
    kept: uint256 = self.keptInfos[coordinator] >> 225
    return kept if kept < number else 0


@internal
@view
def _epoch(coordinator: address, info: uint256) -> leaves.Epoch:
    if info == 0:
        return empty(leaves.Epoch)
    number: uint256 = info >> 225
    return leaves.Epoch(root=self._root(coordinator, number), number=number, postedAt=(info >> 176) & MASK40, sumFinal=(info >> 88) & MASK88, sumHeld=info & MASK88,
                 isExhausted=(info >> 224) & 1 == 1)


@internal
@view
def _is_past(info: uint256) -> bool:
    """Whether an epoch's challenge window is over."""
    return block.timestamp >= ((info >> 176) & MASK40) + CHALLENGE_WINDOW


@internal
@view
def _is_final(info: uint256, head: Head) -> bool:
    """Whether nothing can void an epoch any more."""
    return self._is_past(info) and (head.demands == 0 or info >> 225 < head.floor)


@internal
@view
def _has_final_after(coordinator: address, number: uint256, head: Head) -> bool:
    """Whether a later epoch than this one is final: if any is, then the next one that is not void."""
    start: uint256 = max(number + 1, head.newest - min(head.newest, GAP_MAX))
    for k: uint256 in range(RING):
        if start + k > head.valid:
            break
        info: uint256 = self.infos[coordinator][(start + k) % RING]
        if info >> 225 == start + k:
            return self._is_final(info, head)
    return False


@internal
def _make_room(coordinator: address, number: uint256, head: Head):
    """The place of a new epoch may be that of an old one: it must be final, and is kept beside the ring if claims still count on it."""
    info: uint256 = self.infos[coordinator][number % RING]
    if info == 0:
        return
    assert self._is_final(info, head), "early"
    if not self._has_final_after(coordinator, info >> 225, head):
        self.keptRoots[coordinator] = self.roots[coordinator][number % RING]
        self.keptInfos[coordinator] = info


@internal
@view
def _claimable(coordinator: address, number: uint256) -> uint256:
    """The info word of an epoch if it is the newest final one."""
    head: Head = self._head(coordinator)
    info: uint256 = self._info(coordinator, number)
    assert number > 0 and info != 0 and self._is_final(info, head), "early"
    assert not self._has_final_after(coordinator, number, head), "stale"
    return info


@internal
@view
def _share(coordinator: address, number: uint256, info: uint256) -> Share:
    """Which part of held credits claims pay: nothing, but after a halt as much as vouchers brought in beyond the final ones."""
    head: Head = self._head(coordinator)
    if head.haltedAt == 0 or number != head.valid or block.timestamp < head.haltedAt + HALT_HELD:
        return empty(Share)
    pool: Pool = staticcall Escrow(ESCROW).pool(coordinator)
    held: uint256 = info & MASK88
    return Share(held=held, backed=min(held, pool.charged - ((info >> 88) & MASK88)))


@internal
def _credit(coordinator: address, number: uint256, leaf: leaves.Leaf, share: Share) -> uint256:
    """Notes what a proven leaf has coming and returns receiver(160) | amount(96); 0 if it is nothing."""
    credit: uint256 = leaf.sums >> 128
    if share.held > 0:
        credit += (leaf.sums & MASK128) * share.backed // share.held
    before: uint256 = self.claimed[coordinator][leaf.account]
    if credit <= before or leaf.account == empty(address):  # the audit fund's leaf is nobody's
        return 0
    self.claimed[coordinator][leaf.account] = credit
    receiver: address = staticcall Stakes(STAKES).payout_of(leaf.account)
    if receiver == empty(address):
        receiver = leaf.account
    log Claimed(coordinator=coordinator, account=leaf.account, receiver=receiver, amount=credit - before, epoch=number)
    return (convert(receiver, uint256) << 96) | (credit - before)  # a proven sum has at most 88 bits
