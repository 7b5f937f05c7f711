# pragma version 0.4.3
"""
@title profiles
@notice Where a provider is paid, in which network it is reached, and when it left (PROTOCOL §2).
@dev State of Stakes. Payments use the newest payout at once. A draw counts a change only after PROFILE_DELAY, so nobody changes a jury
     whose beacon round is known.
"""

import registry

MASK48: constant(uint256) = 2**48 - 1
MASK96: constant(uint256) = 2**96 - 1

PROFILE_DELAY: public(immutable(uint256))

payout_of: public(HashMap[address, address])

account_of_payout: HashMap[address, address]
payout_changed: HashMap[address, uint256]  # when; 0 = never
# All that a draw must know of an owner: network (its first 20 bytes) | block in which the slots closed(48) | when the network changed(48)
owners: HashMap[address, uint256]
old_payout: HashMap[address, address]  # counted until PROFILE_DELAY after the change
old_network: HashMap[address, bytes32]


@deploy
def __init__(profileDelay: uint256):
    """Seconds."""
    PROFILE_DELAY = profileDelay


@external
@view
def profile_at(account: address, at: uint256) -> (address, bytes32):
    """Payout and network that count in a draw as of a moment, which is at most PROFILE_DELAY ago."""
    payout: address = self.payout_of[account]
    if at < self.payout_changed[account] + PROFILE_DELAY and self.payout_changed[account] != 0:
        payout = self.old_payout[account]
    return payout, self._network_at(account, self.owners[account], at)


@external
@view
def network_of(account: address) -> bytes32:
    """The newest network of an account."""
    return self._network(self.owners[account])


@external
@view
def out_block(account: address) -> uint256:
    """Slots of an account up to this block count as closed: it left, or lost half of its stake."""
    return self._out_block(self.owners[account])


@external
@view
def profile_changes(account: address) -> (uint256, uint256):
    """From when on the newest payout and the newest network count in a draw; 0 = since the registration."""
    payout: uint256 = self.payout_changed[account]
    network: uint256 = self.owners[account] & MASK48
    return payout + PROFILE_DELAY if payout != 0 else 0, network + PROFILE_DELAY if network != 0 else 0


@internal
def _change_payout(account: address, payout: address, isAccount: bool):
    self._check_change(self.payout_changed[account])
    self.payout_changed[account] = block.timestamp
    self.old_payout[account] = self.payout_of[account]
    self._set_payout(account, payout, isAccount)
    log registry.PayoutChanged(account=account, payout=payout)


@internal
def _change_network(account: address, network: bytes32):
    word: uint256 = self.owners[account]
    self._check_change(word & MASK48)
    self.old_network[account] = self._network(word)
    self._set_network(account, network, block.timestamp)
    log registry.NetworkChanged(account=account, network=network)


@internal
def _set_payout(account: address, payout: address, isAccount: bool):
    """
    @notice The first payout of an account, or a new one. `isAccount`: the payout itself is a provider or coordinator.
    @dev A payout belongs to one account, so nobody excludes another from a draw by naming its payout. An account may always name
         itself, even if a stranger named it first.
    """
    assert payout != empty(address), "zero"
    if payout != account:
        holder: address = self.account_of_payout[payout]
        assert not isAccount and (holder == empty(address) or holder == account), "payout"
    self.account_of_payout[payout] = account
    self.payout_of[account] = payout


@internal
def _set_network(account: address, network: bytes32, changedAt: uint256):
    """A network has few bytes, and they come first."""
    assert network != empty(bytes32), "zero"
    assert convert(network, uint256) & MASK96 == 0, "network"
    self.owners[account] = convert(network, uint256) | (self._out_block(self.owners[account]) << 48) | changedAt


@internal
def _close_all(account: address):
    """All slots of the account count as closed from the next block on."""
    word: uint256 = self.owners[account]
    self.owners[account] = convert(self._network(word), uint256) | ((block.number + 1) << 48) | (word & MASK48)


@internal
@view
def _check_change(last: uint256):
    """One old value is kept, so that the next change may come only after two delays."""
    assert last == 0 or block.timestamp >= last + 2 * PROFILE_DELAY, "early"


@internal
@pure
def _network(word: uint256) -> bytes32:
    return convert(word & ~MASK96, bytes32)


@internal
@pure
def _out_block(word: uint256) -> uint256:
    return (word >> 48) & MASK48


@internal
@view
def _network_at(account: address, word: uint256, at: uint256) -> bytes32:
    """The network that counted at a moment, of an owner's word."""
    changed: uint256 = word & MASK48
    if changed != 0 and at < changed + PROFILE_DELAY:
        return self.old_network[account]
    return self._network(word)
