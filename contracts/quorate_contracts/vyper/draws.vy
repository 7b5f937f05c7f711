# pragma version 0.4.3
"""
@title draws
@notice Who is drawn from the slots of a host class (PROTOCOL §5).
"""

import profiles
import slot_list

uses: profiles
uses: slot_list

MASK32: constant(uint256) = 2**32 - 1
JURORS: constant(uint256) = 7
SHUFFLED_MAX: constant(uint256) = 64
TRIES: constant(uint256) = 512  # in a longer list: an owner that made it long, and took its stake back, left its places there
SIDES: constant(uint256) = 2  # accused and accuser


@internal
@view
def _draw(hostClass: bytes32, length: uint256, seed: bytes32, want: uint256, atBlock: uint256, openedBy: uint256, profilesAt: uint256, excluded: DynArray[address, 16]) -> DynArray[address, JURORS]:
    """
    @notice Up to `want` owners, distinct in owner and network from each other and from the jurors in
            `excluded`, and in owner from the two sides, who come first there; with slots active in `atBlock` and opened by `openedBy`
            (seconds). Networks are those of the moment `profilesAt`.
    @dev Up to 64 places are shuffled, so that a small class gives all it has; a longer list is tried until enough are found, at most 512
         times. Payouts are not compared: each belongs to one account.
    """
    found: DynArray[address, JURORS] = []
    accounts: DynArray[address, 32] = []
    networks: DynArray[bytes32, 32] = []
    for i: uint256 in range(len(excluded), bound=16):
        accounts.append(excluded[i])
        # A side chooses its network: by another's it would choose who does not judge it
        if i >= SIDES:
            networks.append(profiles._network_at(excluded[i], profilesAt))
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
        word: uint256 = slot_list.slots[hostClass][place]
        owner: address = convert(word >> 96, address)
        if owner == empty(address) or word & MASK32 > openedBy or not slot_list._active(word, owner, atBlock):
            continue
        network: bytes32 = profiles._network_at(owner, profilesAt)
        if owner in accounts or network in networks:
            continue
        accounts.append(owner)
        networks.append(network)
        found.append(owner)
    return found
