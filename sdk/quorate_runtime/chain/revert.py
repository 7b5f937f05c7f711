"""The reason of a failed call, as text."""

from quorate_runtime.chain.rpc import RpcFailure

_ERROR_STRING = bytes.fromhex("08c379a0")  # selector of Error(string)
_PANIC = bytes.fromhex("4e487b71")  # selector of Panic(uint256)
_PREFIX = "execution reverted"
_CODES = (3, -32015)  # of geth and similar nodes; of Nethermind and Parity
_WORDS = (
    "revert",
    "opcode",
    "out of gas",
    "stack limit",
    "stack underflow",
    "invalid jump",
    "vm exception",
)


def is_revert(failure: RpcFailure) -> bool:
    """Returns whether the contract refused.

    Otherwise the node did, which may be behind, busy or asked too often.
    """
    lowered = failure.message.lower()
    return failure.code in _CODES or bool(failure.data) or any(words in lowered for words in _WORDS)


def revert_reason(output: bytes, message: str = "") -> str:
    """Returns the contract's own words, "panic 0x..", or else what the node's message says.

    It returns "" if there is no reason.
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
