# pragma version 0.4.3
"""
@title keys
@notice The operator keys of providers and the statement keys of coordinators, each with its validity (PROTOCOL §2).
@dev State of Stakes. A rotated key still answers for what it signed.
"""

import registry

MASK48: constant(uint256) = 2**48 - 1

operator_key: public(HashMap[address, address])  # a coordinator's statement key
key_ranges: HashMap[address, HashMap[address, uint256]]  # account -> key -> from(48) | until(48)


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


@internal
def _rotate(account: address, key: address):
    assert key != empty(address), "zero"
    old: address = self.operator_key[account]
    self.key_ranges[account][old] = (self.key_ranges[account][old] >> 48 << 48) | block.timestamp
    self._set_key(account, key)
    log registry.KeyRotated(account=account, key=key)


@internal
def _set_key(account: address, key: address):
    """One key serves an account once: a range that was closed is never opened again."""
    assert self.key_ranges[account][key] == 0, "key"
    self.key_ranges[account][key] = (block.timestamp << 48) | MASK48
    self.operator_key[account] = key
