# pragma version 0.4.3
"""
@title Stakes
@notice The registry: accounts and their index, keys with their validity, stake slots per host class, coordinator bonds.
        Every message of the protocol is signed under this contract's EIP-712 domain (PROTOCOL §2, §3).
@dev No owner and no upgrade: the addresses of Court and Escrow are fixed at deployment. Only Court freezes and slashes.
"""

interface Token:
    def transferFrom(owner: address, receiver: address, amount: uint256) -> bool: nonpayable
    def transfer(receiver: address, amount: uint256) -> bool: nonpayable
    def balanceOf(owner: address) -> uint256: view

struct Slot:
    owner: address
    operatorKey: address
    payout: address
    network: bytes32
    fromBlock: uint256  # first block in which it can be drawn
    untilBlock: uint256  # first block in which it no longer can; 2**32 - 1 while open

event Registered:
    account: indexed(address)
    index: uint256
    operatorKey: address
    payout: address
    peerKey: bytes32
    boxKey: bytes32
    network: bytes32

event CoordinatorRegistered:
    account: indexed(address)
    index: uint256
    statementKey: address
    postingKey: address

event ClientEnrolled:
    account: indexed(address)
    index: uint256

event KeyRotated:
    account: indexed(address)
    key: address

event PayoutChanged:
    account: indexed(address)
    payout: address

event PostingKeyChanged:
    account: indexed(address)
    key: address

event SlotOpened:
    hostClass: indexed(bytes32)
    account: indexed(address)
    place: uint256
    fromBlock: uint256

event SlotClosed:
    hostClass: indexed(bytes32)
    account: indexed(address)
    place: uint256
    untilBlock: uint256

event Unbonded:
    account: indexed(address)
    amount: uint256

event Frozen:
    account: indexed(address)
    cases: uint256

event Slashed:
    account: indexed(address)
    amount: uint256
    outBlock: uint256

PROVIDER: constant(uint256) = 1
COORDINATOR: constant(uint256) = 2
NEVER: constant(uint256) = 2**32 - 1
MASK32: constant(uint256) = 2**32 - 1
MASK48: constant(uint256) = 2**48 - 1
OPEN_MAX: constant(uint256) = 16  # slots opened by one call
CLASSES_MAX: constant(uint256) = 16  # host classes in which one account has open slots
PAGE: constant(uint256) = 64
SHUFFLED_MAX: constant(uint256) = 64
TRIES: constant(uint256) = 512  # in a longer list: whoever makes it long, and takes its stake back, leaves its places there
JURORS: constant(uint256) = 7
SIDES: constant(uint256) = 2  # accused and accuser

TOKEN: public(immutable(address))
COURT: public(immutable(address))
ESCROW: public(immutable(address))
SLOT_STAKE: public(immutable(uint256))
COORDINATOR_BOND: public(immutable(uint256))
UNBOND_AFTER: public(immutable(uint256))

account_count: public(uint256)
index_of: public(HashMap[address, uint256])  # from 1; 0 = not registered
account_at: public(HashMap[uint256, address])
role_of: public(HashMap[address, uint256])
payout_of: public(HashMap[address, address])
network_of: public(HashMap[address, bytes32])
operator_key: public(HashMap[address, address])  # a coordinator's statement key
posting_key: public(HashMap[address, address])
stake_of: public(HashMap[address, uint256])  # of slots, open or unbonding
bond_of: public(HashMap[address, uint256])  # of a coordinator
retired_at: public(HashMap[address, uint256])  # coordinator: when it retired
frozen: public(HashMap[address, uint256])  # open cases
out_block: public(HashMap[address, uint256])  # slashed: slots up to this block count as closed
slot_count: public(HashMap[bytes32, uint256])  # length of the list, closed places included
owner_count: public(HashMap[bytes32, uint256])  # owners with an open slot

key_ranges: HashMap[address, HashMap[address, uint256]]  # account -> key -> from(48) | until(48)
held: HashMap[address, uint256]  # slots open or unbonding
open_in: HashMap[address, HashMap[bytes32, uint256]]  # open slots per host class
classes_of: HashMap[address, DynArray[bytes32, CLASSES_MAX]]
slots: HashMap[bytes32, HashMap[uint256, uint256]]  # owner(160) | fromBlock(32) | untilBlock(32) | fromTime(32)
unbond_at: HashMap[bytes32, HashMap[uint256, uint256]]
free_count: HashMap[bytes32, uint256]
free_places: HashMap[bytes32, HashMap[uint256, uint256]]  # a stack


@deploy
def __init__(token: address, court: address, escrow: address, slotStake: uint256, coordinatorBond: uint256, unbondAfter: uint256):
    """Court and Escrow are named before they exist; their addresses follow from the deployer's nonces."""
    TOKEN = token
    COURT = court
    ESCROW = escrow
    SLOT_STAKE = slotStake
    COORDINATOR_BOND = coordinatorBond
    UNBOND_AFTER = unbondAfter


# ------------------------------------------------------------------------------------------------------------- accounts


@external
def register(operatorKey: address, payout: address, peerKey: bytes32, boxKey: bytes32, network: bytes32):
    """The sender becomes a provider (and its owner). Peer and box key are only published here: the chain never uses them."""
    assert self.role_of[msg.sender] == 0, "registered"
    assert operatorKey != empty(address) and payout != empty(address) and network != empty(bytes32), "zero"
    self.role_of[msg.sender] = PROVIDER
    self.payout_of[msg.sender] = payout
    self.network_of[msg.sender] = network
    self._set_key(msg.sender, operatorKey)
    index: uint256 = self._enroll(msg.sender)
    log Registered(account=msg.sender, index=index, operatorKey=operatorKey, payout=payout, peerKey=peerKey, boxKey=boxKey, network=network)


@external
@nonreentrant
def register_coordinator(statementKey: address, postingKey: address):
    """The sender becomes a coordinator and puts up its bond. An account has one role, so no key can answer for two."""
    assert self.role_of[msg.sender] == 0, "registered"
    assert statementKey != empty(address) and postingKey != empty(address), "zero"
    self.role_of[msg.sender] = COORDINATOR
    self.posting_key[msg.sender] = postingKey
    self.bond_of[msg.sender] = COORDINATOR_BOND
    self._set_key(msg.sender, statementKey)
    index: uint256 = self._enroll(msg.sender)
    self._pull(msg.sender, COORDINATOR_BOND)
    log CoordinatorRegistered(account=msg.sender, index=index, statementKey=statementKey, postingKey=postingKey)


@external
def enroll(account: address) -> uint256:
    """Escrow only: the index of a client, given at its first deposit."""
    assert msg.sender == ESCROW, "escrow"
    index: uint256 = self.index_of[account]
    if index == 0:
        index = self._enroll(account)
        log ClientEnrolled(account=account, index=index)
    return index


@external
def rotate_key(key: address):
    """A new operator (or statement) key from this second on; the old one still answers for what it signed, this second included."""
    assert self.role_of[msg.sender] != 0, "registered"
    assert key != empty(address), "zero"
    old: address = self.operator_key[msg.sender]
    self.key_ranges[msg.sender][old] = (self.key_ranges[msg.sender][old] >> 48 << 48) | block.timestamp
    self._set_key(msg.sender, key)
    log KeyRotated(account=msg.sender, key=key)


@external
def change_payout(payout: address):
    """Where claims and credits of this provider go."""
    assert self.role_of[msg.sender] == PROVIDER, "registered"
    assert payout != empty(address), "zero"
    self.payout_of[msg.sender] = payout
    log PayoutChanged(account=msg.sender, payout=payout)


@external
def change_posting_key(key: address):
    """Who may post this coordinator's epochs. It signs nothing, so it needs no history."""
    assert self.role_of[msg.sender] == COORDINATOR, "registered"
    assert key != empty(address), "zero"
    self.posting_key[msg.sender] = key
    log PostingKeyChanged(account=msg.sender, key=key)


@external
def retire_coordinator():
    """Starts the unbonding of the bond; epochs can still be posted."""
    assert self.role_of[msg.sender] == COORDINATOR and self.retired_at[msg.sender] == 0, "registered"
    self.retired_at[msg.sender] = block.timestamp


@external
@nonreentrant
def unbond_coordinator():
    """Pays the bond back once the delay has passed. The account keeps its index and its key history."""
    retired: uint256 = self.retired_at[msg.sender]
    assert retired != 0 and block.timestamp >= retired + UNBOND_AFTER, "early"
    assert self.frozen[msg.sender] == 0, "frozen"
    amount: uint256 = self.bond_of[msg.sender]
    assert amount > 0, "amount"
    self.bond_of[msg.sender] = 0
    self._pay(msg.sender, amount)
    log Unbonded(account=msg.sender, amount=amount)


# ---------------------------------------------------------------------------------------------------------------- slots


@external
@nonreentrant
def open_slots(hostClass: bytes32, count: uint256):
    """Opens slots from the next block on. What a slash took from held slots is staked anew with them."""
    assert self.role_of[msg.sender] == PROVIDER, "registered"
    assert count > 0 and count <= OPEN_MAX and hostClass != empty(bytes32), "count"
    # A slot opened in the block of a slash could not be told from those that the slash closed
    assert block.number >= self.out_block[msg.sender], "frozen"
    if self.open_in[msg.sender][hostClass] == 0:
        self.owner_count[hostClass] += 1
        self.classes_of[msg.sender].append(hostClass)
    self.open_in[msg.sender][hostClass] += count
    word: uint256 = (convert(msg.sender, uint256) << 96) | ((block.number + 1) << 64) | (NEVER << 32) | block.timestamp
    for _: uint256 in range(count, bound=OPEN_MAX):
        place: uint256 = self._take_place(hostClass)
        self.slots[hostClass][place] = word
        log SlotOpened(hostClass=hostClass, account=msg.sender, place=place, fromBlock=block.number + 1)
    self.held[msg.sender] += count
    missing: uint256 = self.held[msg.sender] * SLOT_STAKE - self.stake_of[msg.sender]
    self.stake_of[msg.sender] += missing
    self._pull(msg.sender, missing)


@external
def close_slot(hostClass: bytes32, place: uint256):
    """The slot is not drawn from the next block on; its stake answers until it is unbonded."""
    word: uint256 = self.slots[hostClass][place]
    assert word >> 96 == convert(msg.sender, uint256), "owner"
    assert (word >> 32) & MASK32 == NEVER, "phase"
    self.slots[hostClass][place] = word - ((NEVER - block.number - 1) << 32)
    self.unbond_at[hostClass][place] = block.timestamp + UNBOND_AFTER
    if (word >> 64) & MASK32 > self.out_block[msg.sender]:
        self.open_in[msg.sender][hostClass] -= 1
        if self.open_in[msg.sender][hostClass] == 0:
            self.owner_count[hostClass] -= 1
            self._forget_class(msg.sender, hostClass)
    log SlotClosed(hostClass=hostClass, account=msg.sender, place=place, untilBlock=block.number + 1)


@external
@nonreentrant
def unbond_slot(hostClass: bytes32, place: uint256):
    """Pays a closed slot's stake back after the delay and frees its place. Whoever leaves first bears what a slash took."""
    word: uint256 = self.slots[hostClass][place]
    assert word >> 96 == convert(msg.sender, uint256), "owner"
    ready: uint256 = self.unbond_at[hostClass][place]
    assert ready != 0 and block.timestamp >= ready, "early"
    assert self.frozen[msg.sender] == 0, "frozen"
    rest: uint256 = (self.held[msg.sender] - 1) * SLOT_STAKE
    amount: uint256 = 0
    if self.stake_of[msg.sender] > rest:
        amount = self.stake_of[msg.sender] - rest
    self.held[msg.sender] -= 1
    self.stake_of[msg.sender] -= amount
    self.slots[hostClass][place] = 0
    self.unbond_at[hostClass][place] = 0
    free: uint256 = self.free_count[hostClass]
    self.free_places[hostClass][free] = place
    self.free_count[hostClass] = free + 1
    self._pay(msg.sender, amount)
    log Unbonded(account=msg.sender, amount=amount)


# ---------------------------------------------------------------------------------------------------------------- court


@external
def freeze(account: address):
    """Court only: a case is open; nothing of this account unbonds."""
    assert msg.sender == COURT, "court"
    self.frozen[account] += 1
    log Frozen(account=account, cases=self.frozen[account])


@external
def unfreeze(account: address):
    """Court only: one case less."""
    assert msg.sender == COURT, "court"
    self.frozen[account] -= 1
    log Frozen(account=account, cases=self.frozen[account])


@external
@nonreentrant
def slash(account: address, amount: uint256) -> uint256:
    """Court only: takes at most `amount` of the stake to Court, closes every slot; returns what was taken."""
    assert msg.sender == COURT, "court"
    taken: uint256 = min(amount, self.stake_of[account])
    self.stake_of[account] -= taken
    self.out_block[account] = block.number + 1
    for hostClass: bytes32 in self.classes_of[account]:
        self.owner_count[hostClass] -= 1
        self.open_in[account][hostClass] = 0
    self.classes_of[account] = []
    self._pay(COURT, taken)
    log Slashed(account=account, amount=taken, outBlock=block.number + 1)
    return taken


# ---------------------------------------------------------------------------------------------------------------- views


@external
@view
def domain_separator() -> bytes32:
    """EIP-712 domain of every message; recomputed, so that a forked chain gets its own."""
    return keccak256(abi_encode(
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
        keccak256("Quorate"), keccak256("1"), chain.id, self))


@external
@view
def key_valid(account: address, key: address, at: uint256) -> bool:
    """Whether a key of this account was valid at a moment, inclusive at both ends."""
    validity: uint256 = self.key_ranges[account][key]
    return validity != 0 and validity >> 48 <= at and at <= validity & MASK48


@external
@view
def key_range(account: address, key: address) -> (uint256, uint256):
    """First and last second in which a key was valid; zeros when it never was, 2**48 - 1 while it is."""
    validity: uint256 = self.key_ranges[account][key]
    return validity >> 48, validity & MASK48


@external
@view
def slot(hostClass: bytes32, place: uint256) -> Slot:
    """One place of the list; owner zero when it is free."""
    return self._slot(hostClass, place)


@external
@view
def slot_page(hostClass: bytes32, start: uint256) -> DynArray[Slot, PAGE]:
    """Up to 64 places from `start`."""
    page: DynArray[Slot, PAGE] = []
    for i: uint256 in range(PAGE):
        if start + i >= self.slot_count[hostClass]:
            break
        page.append(self._slot(hostClass, start + i))
    return page


@external
@view
def draw(hostClass: bytes32, length: uint256, seed: bytes32, want: uint256, atBlock: uint256, openedBy: uint256, excluded: DynArray[address, 16]) -> DynArray[uint256, JURORS]:
    """
    @notice Registration indices of up to `want` owners, distinct in owner, payout and network from each other and from the jurors in
            `excluded`, and in owner from the two sides, who come first there; with slots active in `atBlock` and opened by `openedBy`
            (seconds).
    @dev Up to 64 places are shuffled, so that a small class gives all it has; a longer list is tried until enough are found, at most 512
         times.
    """
    found: DynArray[uint256, JURORS] = []
    accounts: DynArray[address, 64] = []
    networks: DynArray[bytes32, 32] = []
    for i: uint256 in range(len(excluded), bound=16):
        account: address = excluded[i]
        accounts.append(account)
        # A side chooses its payout and network: by another's it would choose who does not judge it
        if i >= SIDES and self.payout_of[account] != empty(address):
            accounts.append(self.payout_of[account])
            networks.append(self.network_of[account])
    order: uint256[SHUFFLED_MAX] = empty(uint256[SHUFFLED_MAX])
    for k: uint256 in range(SHUFFLED_MAX):
        order[k] = k
    for k: uint256 in range(TRIES):
        if len(found) >= want or (length <= SHUFFLED_MAX and k >= length):
            break
        roll: uint256 = convert(keccak256(abi_encode(seed, k)), uint256)
        place: uint256 = 0
        if length <= SHUFFLED_MAX:
            other: uint256 = k + roll % (length - k)
            place = order[other]
            order[other] = order[k]
        else:
            place = roll % length
        word: uint256 = self.slots[hostClass][place]
        owner: address = convert(word >> 96, address)
        if owner == empty(address) or word & MASK32 > openedBy or not self._active(word, owner, atBlock):
            continue
        payout: address = self.payout_of[owner]
        if owner in accounts or payout in accounts or self.network_of[owner] in networks:
            continue
        accounts.append(owner)
        accounts.append(payout)
        networks.append(self.network_of[owner])
        found.append(self.index_of[owner])
    return found


# ------------------------------------------------------------------------------------------------------------- internal


@internal
def _enroll(account: address) -> uint256:
    index: uint256 = self.index_of[account]
    if index == 0:
        index = self.account_count + 1
        assert index <= MASK32, "count"
        self.account_count = index
        self.index_of[account] = index
        self.account_at[index] = account
    return index


@internal
def _set_key(account: address, key: address):
    """One key serves an account once: a range that was closed is never opened again."""
    assert self.key_ranges[account][key] == 0, "key"
    self.key_ranges[account][key] = (block.timestamp << 48) | MASK48
    self.operator_key[account] = key


@internal
def _take_place(hostClass: bytes32) -> uint256:
    free: uint256 = self.free_count[hostClass]
    if free > 0:
        self.free_count[hostClass] = free - 1
        return self.free_places[hostClass][free - 1]
    place: uint256 = self.slot_count[hostClass]
    self.slot_count[hostClass] = place + 1
    return place


@internal
def _forget_class(account: address, hostClass: bytes32):
    last: bytes32 = self.classes_of[account].pop()
    if last == hostClass:
        return
    for i: uint256 in range(CLASSES_MAX):
        if self.classes_of[account][i] == hostClass:
            self.classes_of[account][i] = last
            break


@internal
@view
def _active(word: uint256, owner: address, at: uint256) -> bool:
    start: uint256 = (word >> 64) & MASK32
    out: uint256 = self.out_block[owner]
    return start <= at and at < (word >> 32) & MASK32 and (start > out or at < out)


@internal
@view
def _slot(hostClass: bytes32, place: uint256) -> Slot:
    word: uint256 = self.slots[hostClass][place]
    owner: address = convert(word >> 96, address)
    start: uint256 = (word >> 64) & MASK32
    end: uint256 = (word >> 32) & MASK32
    if start <= self.out_block[owner]:
        end = min(end, self.out_block[owner])
    return Slot(owner=owner, operatorKey=self.operator_key[owner], payout=self.payout_of[owner], network=self.network_of[owner], fromBlock=start, untilBlock=end)


@internal
def _pull(owner: address, amount: uint256):
    """Tokens in; a token that rebases or takes a fee on transfer is refused."""
    before: uint256 = staticcall Token(TOKEN).balanceOf(self)
    assert extcall Token(TOKEN).transferFrom(owner, self, amount, default_return_value=True), "token"
    assert staticcall Token(TOKEN).balanceOf(self) == before + amount, "amount"


@internal
def _pay(receiver: address, amount: uint256):
    if amount > 0:
        assert extcall Token(TOKEN).transfer(receiver, amount, default_return_value=True), "token"
