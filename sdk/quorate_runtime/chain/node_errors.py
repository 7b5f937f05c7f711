"""Says what a node's refusal of a transaction or call means.

Nodes (geth, anvil, reth, Nethermind) agree more on the words than on the codes.
"""

from enum import Enum

from quorate_runtime.chain.rpc import RpcFailure

_ERROR_STRING = bytes.fromhex("08c379a0")  # selector of Error(string)
_PANIC = bytes.fromhex("4e487b71")  # selector of Panic(uint256)
_PREFIX = "execution reverted"
_CODES = (3, -32015)  # of geth and similar nodes; of Nethermind and Parity
_REVERT_WORDS = (
    "revert",
    "opcode",
    "out of gas",
    "stack limit",
    "stack underflow",
    "invalid jump",
    "vm exception",
)


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


def is_revert(failure: RpcFailure) -> bool:
    """Returns whether the contract refused. Otherwise the node did, which may be behind, busy or
    asked too often.
    """
    lowered = failure.message.lower()
    return (
        failure.code in _CODES
        or bool(failure.data)
        or any(words in lowered for words in _REVERT_WORDS)
    )


def revert_reason(output: bytes, message: str = "") -> str:
    """Returns the contract's own words, "panic 0x..", or else what the node's message says. It
    returns "" if there is no reason.
    """
    from eth_abi import abi
    from eth_abi.exceptions import DecodingError

    try:
        if output[:4] == _ERROR_STRING:
            return str(abi.decode(["string"], output[4:])[0])[:200]
        if output[:4] == _PANIC:
            return f"panic {abi.decode(['uint256'], output[4:])[0]:#x}"
    except (DecodingError, UnicodeDecodeError):
        # A contract may return any bytes after the selector; the raw bytes are shown then.
        return "0x" + output[:64].hex()
    if output:
        return "0x" + output[:64].hex()
    return message.removeprefix(_PREFIX).removeprefix(":").strip()
