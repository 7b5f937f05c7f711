# pragma version 0.4.3
"""
@title bonds
@notice Coordinators' bonds, and when each was there (PROTOCOL §2).
@dev State of Stakes. Tokens are not handled here.
"""

MASK48: constant(uint256) = 2**48 - 1

COORDINATOR_BOND: public(immutable(uint256))

bond_of: public(HashMap[address, uint256])
bond_spans: HashMap[address, uint256]  # registered(48) | bond lost(48) | bond restored(48)


@deploy
def __init__(coordinatorBond: uint256):
    """Token units."""
    COORDINATOR_BOND = coordinatorBond


@external
@view
def is_bonded(coordinator: address) -> bool:
    """Whether at least half of the coordinator's bond is there."""
    return self._is_bonded(coordinator)


@external
@view
def bonded_at(coordinator: address, at: uint256) -> bool:
    """
    @notice Whether the coordinator was registered and bonded at a moment, inclusive. A bond that waits for its unbonding counts.
    @dev Of several times without a bond only the last one is known.
    """
    span: uint256 = self.bond_spans[coordinator]
    lost: uint256 = (span >> 48) & MASK48
    return span != 0 and span >> 96 <= at and (lost == 0 or at <= lost or at >= span & MASK48)


@internal
def _begin(account: address):
    """A new coordinator has its whole bond."""
    self.bond_of[account] = COORDINATOR_BOND
    self.bond_spans[account] = block.timestamp << 96


@internal
def _restore(account: address, amount: uint256):
    """A coordinator adds what is missing, or less."""
    bond: uint256 = self.bond_of[account]
    assert amount > 0 and amount <= COORDINATOR_BOND - bond, "amount"
    self._set_bond(account, bond + amount)


@internal
def _set_bond(account: address, bond: uint256):
    """Remembers when the bond was lost, or restored."""
    before: bool = self._is_bonded(account)
    self.bond_of[account] = bond
    registered: uint256 = self.bond_spans[account] >> 96 << 96
    if before and not self._is_bonded(account):
        self.bond_spans[account] = registered | (block.timestamp << 48) | MASK48
    elif not before and self._is_bonded(account):
        self.bond_spans[account] = self.bond_spans[account] >> 48 << 48 | block.timestamp


@internal
@view
def _is_bonded(account: address) -> bool:
    return self.bond_spans[account] != 0 and 2 * self.bond_of[account] >= COORDINATOR_BOND
