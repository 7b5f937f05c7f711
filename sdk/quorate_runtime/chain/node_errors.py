"""Says what a node's refusal of a transaction means.

Nodes (geth, anvil, reth, Nethermind) agree more on the words than on the codes.
"""

from enum import Enum


class Answer(Enum):
    """The meaning of a refusal, from which the sender decides what to do."""

    KNOWN = "known"  # the node has it: success
    NONCE_USED = "nonce-used"  # our transaction or another program's has used the nonce
    UNFUNDED = "unfunded"  # as NEVER, until the account has more coins
    NEVER = "never"  # the node will never take it as it is signed
    LATER = "later"  # anything else: try again


_WORDS: tuple[tuple[str, Answer], ...] = (
    ("already known", Answer.KNOWN),
    ("already imported", Answer.KNOWN),
    ("alreadyknown", Answer.KNOWN),
    ("known transaction", Answer.KNOWN),
    # An attempt of the same nonce with a higher fee waits there already.
    ("replacement transaction underpriced", Answer.KNOWN),
    ("nonce too low", Answer.NONCE_USED),
    ("oldnonce", Answer.NONCE_USED),
    ("insufficient funds", Answer.UNFUNDED),
    ("intrinsic gas too low", Answer.NEVER),
    ("gas limit", Answer.NEVER),
    ("oversized data", Answer.NEVER),
    ("initcode size", Answer.NEVER),
    ("invalid chain id", Answer.NEVER),
    ("invalid sender", Answer.NEVER),
    ("invalid transaction", Answer.NEVER),
)


def classify(message: str) -> Answer:
    lowered = message.lower()
    return next((answer for words, answer in _WORDS if words in lowered), Answer.LATER)
