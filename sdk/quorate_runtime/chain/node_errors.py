"""What a node's refusal of a transaction means. Nodes agree on the words more than on the codes
(geth, anvil, reth, Nethermind).
"""

from enum import Enum


class Answer(Enum):
    """What to do about it."""

    KNOWN = "known"  # the node has it: success
    NONCE_USED = "nonce-used"  # ours or somebody else's transaction used the nonce
    UNFUNDED = "unfunded"  # as NEVER, until the account has more coins
    NEVER = "never"  # as signed it will never be taken
    LATER = "later"  # anything else: try again


_WORDS: tuple[tuple[str, Answer], ...] = (
    ("already known", Answer.KNOWN),
    ("already imported", Answer.KNOWN),
    ("alreadyknown", Answer.KNOWN),
    ("known transaction", Answer.KNOWN),
    # A dearer attempt of the same nonce waits there already.
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
    """The meaning of a node's message."""
    lowered = message.lower()
    return next((answer for words, answer in _WORDS if words in lowered), Answer.LATER)
