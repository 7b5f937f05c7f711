"""JSON-RPC errors of the devnet chain."""

from eth_abi import abi
from eth_abi.exceptions import DecodingError

REVERTED = 3  # geth's code for a reverted eth_call
SERVER_ERROR = -32000
LIMIT_EXCEEDED = -32005
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
PARSE_ERROR = -32700

_ERROR_STRING = bytes.fromhex("08c379a0")  # selector of Error(string)
_PANIC = bytes.fromhex("4e487b71")  # selector of Panic(uint256)


class RpcError(Exception):
    """An error for the caller. `data` is the 0x-hex revert output, if there is one."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


def reverted(output: bytes, fallback: str) -> RpcError:
    """Returns the error of a failed call: its reason, if the contract gave one, and its raw
    output.
    """
    reason = reason_of(output)
    text = f"execution reverted: {reason}" if reason else fallback
    return RpcError(REVERTED, text, "0x" + output.hex())


def reason_of(output: bytes) -> str:
    """Returns the text of Error(string), or "panic 0x.." for Panic(uint256).

    It returns "" if there is no reason.
    """
    try:
        if output[:4] == _ERROR_STRING:
            return str(abi.decode(["string"], output[4:])[0])
        if output[:4] == _PANIC:
            return f"panic {abi.decode(['uint256'], output[4:])[0]:#x}"
    except (DecodingError, UnicodeDecodeError):
        # Not re-raised: a contract may return any bytes after these four.
        return ""
    return ""
