# pragma version 0.4.3
"""
@title slot_list
@notice The stake slots of each pool: who has one, in which blocks it can be drawn, and when its stake comes back (PROTOCOL §2).
@dev State of Stakes. A place of a list is reused once its stake was paid back. Tokens are not handled here.
"""

import profiles
import registry

uses: profiles

NEVER: constant(uint256) = 2**32 - 1
MASK32: constant(uint256) = 2**32 - 1
OPEN_MAX: constant(uint256) = 16  # slots opened by one call
CLASSES_MAX: constant(uint256) = 16  # pools in which one account has open slots

slot_count: public(HashMap[bytes32, uint256])  # length of the list, closed places included
owner_count: public(HashMap[bytes32, uint256])  # owners with an open slot
held: public(HashMap[address, uint256])  # slots of an account, open or unbonding

out_at: HashMap[address, uint256]  # when all slots closed, in the block that `profiles` knows
open_in: HashMap[address, HashMap[bytes32, uint256]]  # open slots per pool
classes_of: HashMap[address, DynArray[bytes32, CLASSES_MAX]]
slots: HashMap[bytes32, HashMap[uint256, uint256]]  # owner(160) | fromBlock(32) | untilBlock(32) | fromTime(32)
unbond_at: HashMap[bytes32, HashMap[uint256, uint256]]
free_count: HashMap[bytes32, uint256]
free_places: HashMap[bytes32, HashMap[uint256, uint256]]  # a stack


@external
@view
def open_slots_of(account: address, pool: bytes32) -> uint256:
    """Open slots of an account in a pool."""
    return self.open_in[account][pool]


@internal
def _open(account: address, pool: bytes32, count: uint256):
    """Opens slots from the next block on."""
    assert count > 0 and count <= OPEN_MAX and pool != empty(bytes32), "count"
    # A slot opened in the block of a burn could not be told from those that the burn closed
    assert block.number >= self._out_block(account), "early"
    if self.open_in[account][pool] == 0:
        self.owner_count[pool] += 1
        self.classes_of[account].append(pool)
    self.open_in[account][pool] += count
    word: uint256 = (convert(account, uint256) << 96) | ((block.number + 1) << 64) | (NEVER << 32) | block.timestamp
    for _: uint256 in range(count, bound=OPEN_MAX):
        place: uint256 = self._take_place(pool)
        self.slots[pool][place] = word
        log registry.SlotOpened(pool=pool, account=account, place=place, fromBlock=block.number + 1)
    self.held[account] += count


@internal
def _close(account: address, pool: bytes32, place: uint256, unbondAfter: uint256):
    """The slot is not drawn from the next block on."""
    word: uint256 = self.slots[pool][place]
    assert word >> 96 == convert(account, uint256), "owner"
    assert (word >> 32) & MASK32 == NEVER, "phase"
    self.slots[pool][place] = word - ((NEVER - block.number - 1) << 32)
    self.unbond_at[pool][place] = block.timestamp + unbondAfter
    if (word >> 64) & MASK32 > self._out_block(account):
        self.open_in[account][pool] -= 1
        if self.open_in[account][pool] == 0:
            self.owner_count[pool] -= 1
            self._forget_class(account, pool)
    log registry.SlotClosed(pool=pool, account=account, place=place, untilBlock=block.number + 1)


@internal
def _close_all(account: address):
    """No slot of the account is drawn from the next block on."""
    profiles._close_all(account)
    self.out_at[account] = block.timestamp
    for pool: bytes32 in self.classes_of[account]:
        self.owner_count[pool] -= 1
        self.open_in[account][pool] = 0
    self.classes_of[account] = []


@internal
def _free(account: address, pool: bytes32, place: uint256, unbondAfter: uint256):
    """Frees the place of a closed slot after the delay."""
    word: uint256 = self.slots[pool][place]
    assert word >> 96 == convert(account, uint256), "owner"
    ready: uint256 = self.unbond_at[pool][place]
    if ready == 0 and (word >> 64) & MASK32 <= self._out_block(account):
        ready = self.out_at[account] + unbondAfter
    assert ready != 0 and block.timestamp >= ready, "early"
    self.held[account] -= 1
    self.slots[pool][place] = 0
    self.unbond_at[pool][place] = 0
    free: uint256 = self.free_count[pool]
    self.free_places[pool][free] = place
    self.free_count[pool] = free + 1


@internal
@view
def _has_open(account: address) -> bool:
    """Without an open slot there is nothing to close, and slots that wait for their stake do not wait longer."""
    return len(self.classes_of[account]) > 0


@internal
@view
def _out_block(account: address) -> uint256:
    return profiles._out_block(profiles.owners[account])


@internal
@view
def _active_since(word: uint256, out: uint256, since: uint256) -> bool:
    """Whether a slot has been active from a block on until now. `out`: the block in which its owner's slots closed."""
    start: uint256 = (word >> 64) & MASK32
    return start <= since and block.number < (word >> 32) & MASK32 and (start > out or block.number < out)


@internal
@view
def _range(pool: bytes32, place: uint256) -> (address, uint256, uint256):
    """Owner, first block, and the block from which on it is closed."""
    word: uint256 = self.slots[pool][place]
    owner: address = convert(word >> 96, address)
    start: uint256 = (word >> 64) & MASK32
    end: uint256 = (word >> 32) & MASK32
    out: uint256 = self._out_block(owner)
    if start <= out:
        end = min(end, out)
    return owner, start, end


@internal
def _take_place(pool: bytes32) -> uint256:
    free: uint256 = self.free_count[pool]
    if free > 0:
        self.free_count[pool] = free - 1
        return self.free_places[pool][free - 1]
    place: uint256 = self.slot_count[pool]
    self.slot_count[pool] = place + 1
    return place


@internal
def _forget_class(account: address, pool: bytes32):
    last: bytes32 = self.classes_of[account].pop()
    if last == pool:
        return
    for i: uint256 in range(CLASSES_MAX):
        if self.classes_of[account][i] == pool:
            self.classes_of[account][i] = last
            break
