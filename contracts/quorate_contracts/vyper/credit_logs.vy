# pragma version 0.4.3
"""
@title credit_logs
@notice The log of credits of one account (PROTOCOL §6), and whether it has an entry.
@dev A Merkle mountain range: a perfect tree for each bit of the count, the largest first; root = H(count, peaks folded from the smallest).
"""

DEPTH_MAX: constant(uint256) = 32

struct Entry:
    pay: uint256
    index: uint256  # in the account's log of credits
    count: uint256  # entries of the log
    siblings: DynArray[bytes32, DEPTH_MAX]  # from the entry up to its peak
    otherPeaks: DynArray[bytes32, DEPTH_MAX]  # the largest first


@internal
@pure
def _check_entry(root: bytes32, entry: bytes32, shown: Entry):
    """The log with this root has the entry at the index shown."""
    assert shown.index < shown.count and shown.count < 2**DEPTH_MAX, "proof"
    first: uint256 = 0
    mine: uint256 = 0
    peaks: uint256 = 0
    height: uint256 = 0
    for k: uint256 in range(DEPTH_MAX):
        bit: uint256 = DEPTH_MAX - 1 - k
        if (shown.count >> bit) & 1 == 0:
            continue
        if shown.index >= first and shown.index < first + (1 << bit):
            mine = peaks
            height = bit
            break
        first += 1 << bit
        peaks += 1
    assert len(shown.siblings) == height, "proof"
    node: bytes32 = entry
    place: uint256 = shown.index - first
    for sibling: bytes32 in shown.siblings:
        node = keccak256(concat(sibling, node)) if place & 1 == 1 else keccak256(concat(node, sibling))
        place >>= 1
    count: uint256 = len(shown.otherPeaks) + 1
    folded: bytes32 = empty(bytes32)
    for k: uint256 in range(DEPTH_MAX + 1):
        if k >= count:
            break
        at: uint256 = count - 1 - k
        peak: bytes32 = node
        if at < mine:
            peak = shown.otherPeaks[at]
        elif at > mine:
            peak = shown.otherPeaks[at - 1]
        folded = peak if k == 0 else keccak256(concat(peak, folded))
    bits: uint256 = 0
    for k: uint256 in range(DEPTH_MAX):
        bits += (shown.count >> k) & 1
    assert bits == count and keccak256(abi_encode(shown.count, folded)) == root, "proof"
