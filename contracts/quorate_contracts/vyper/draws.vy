# pragma version 0.4.3
"""
@title draws
@notice Who is drawn from the slots of a pool (PROTOCOL §5).
"""

import profiles
import registry
import slot_list

uses: profiles
uses: slot_list

MASK32: constant(uint256) = 2**32 - 1
JURORS: constant(uint256) = 7
DRAWN_MAX: constant(uint256) = 14  # a jury, and those who replace it
PARTIES: constant(uint256) = 3  # accuser, accused, and the owner of the contradiction
SHUFFLED_MAX: constant(uint256) = 64
TRIES: constant(uint256) = 512  # of one call in a longer list
# An owner that made a list long, and took its stake back, left its places there. A place that is alive is not met in so many tries with
# a chance of e**-8; so a draw ends, and finds nearly everybody
TRIES_PER_PLACE: constant(uint256) = 8


@internal
@view
def _draw(lot: registry.Lot, want: uint256, start: uint256, parties: address[PARTIES], drawn: DynArray[address, DRAWN_MAX]) -> (DynArray[address, JURORS], uint256):
    """
    @notice Up to `want` owners with slots as `lot` says, distinct in owner and network from each other and from those drawn before, and in
            owner from the parties. The second value is the try with which the next call goes on; 0 = the draw is over.
    @dev Up to 64 places are shuffled, so that a small class gives all it has. In a longer list places are tried at random. Payouts are not
         compared: each belongs to one account. Who leaves between opening and draw only removes itself: the order of all others stays.
    """
    found: DynArray[address, JURORS] = []
    networks: DynArray[bytes32, DRAWN_MAX] = []
    for juror: address in drawn:
        networks.append(profiles._network_at(juror, profiles.owners[juror], lot.profilesAt))
    isShuffled: bool = lot.length <= SHUFFLED_MAX
    last: uint256 = lot.length if isShuffled else TRIES_PER_PLACE * lot.length
    order: uint256[SHUFFLED_MAX] = empty(uint256[SHUFFLED_MAX])  # 0 = the place of the same number, else place + 1
    next: uint256 = start
    for _: uint256 in range(TRIES):
        if len(found) >= want or next >= last:
            break
        roll: uint256 = convert(keccak256(abi_encode(lot.seed, next)), uint256)
        place: uint256 = 0
        if isShuffled:
            other: uint256 = next + roll % (lot.length - next)
            place = order[other] - 1 if order[other] != 0 else other
            order[other] = order[next] if order[next] != 0 else next + 1
        else:
            place = roll % lot.length
        next += 1
        word: uint256 = slot_list.slots[lot.pool][place]
        owner: address = convert(word >> 96, address)
        # A side chooses its network, so networks of parties count for nothing: by another's it would choose who does not judge it
        if owner == empty(address) or word & MASK32 > lot.openedBy or owner == parties[0] or owner == parties[1] or owner == parties[2]:
            continue
        known: uint256 = profiles.owners[owner]
        if not slot_list._active_since(word, profiles._out_block(known), lot.atBlock):
            continue
        network: bytes32 = profiles._network_at(owner, known, lot.profilesAt)
        # An owner has one network, so this keeps owners apart too
        if network in networks:
            continue
        networks.append(network)
        found.append(owner)
    if len(found) >= want or next >= last:
        next = 0
    return found, next
