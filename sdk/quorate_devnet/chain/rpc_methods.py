"""The JSON-RPC methods over a `Ledger`. The error for an unknown method names the method."""

from collections.abc import Callable, Sequence

from eth_typing import Address
from msgspec import to_builtins

from quorate_devnet.chain import CHAIN_ID, event_logs, json_forms, saved_chain
from quorate_devnet.chain.block_records import Outcome
from quorate_devnet.chain.evm_chain import TRANSACTION_GAS_MAX, Ledger
from quorate_devnet.chain.json_forms import Json
from quorate_devnet.chain.rpc_errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    SERVER_ERROR,
    RpcError,
    reverted,
)
from quorate_devnet.chain.rpc_params import block_at, bytes_of, call_of, int_of

TIP_WEI = 10**9
FEE_HISTORY_MAX = 1024
ESTIMATE_FIXED, ESTIMATE_SHARE = 10_000, 8  # margin of an estimate: fixed, plus an eighth

Params = Sequence[Json]
Method = Callable[[Ledger, Params], Json]


def answer(table: dict[str, Method], ledger: Ledger, method: str, params: Params) -> Json:
    """Returns the result of one request.

    Raises RpcError, which says what is wrong with the request.
    """
    run = table.get(method)
    if run is None:
        raise RpcError(METHOD_NOT_FOUND, f"the method {method[:64]} does not exist")
    try:
        return run(ledger, params)
    except IndexError as error:
        raise RpcError(INVALID_PARAMS, f"{method}: too few parameters") from error


def read_methods() -> dict[str, Method]:
    return {
        "eth_chainId": lambda ledger, params: json_forms.quantity(CHAIN_ID),
        "net_version": lambda ledger, params: str(CHAIN_ID),
        "web3_clientVersion": lambda ledger, params: "quorate-devnet/1",
        "eth_blockNumber": lambda ledger, params: json_forms.quantity(ledger.head.number),
        "eth_syncing": lambda ledger, params: False,
        "eth_accounts": lambda ledger, params: [],
        "eth_gasPrice": lambda ledger, params: json_forms.quantity(
            (ledger.head.header.base_fee_per_gas or 0) + TIP_WEI
        ),
        "eth_maxPriorityFeePerGas": lambda ledger, params: json_forms.quantity(TIP_WEI),
        "eth_feeHistory": _fee_history,
        "eth_getBalance": lambda ledger, params: json_forms.quantity(
            _state(ledger, params, 1).get_balance(_address(params[0]))
        ),
        "eth_getCode": lambda ledger, params: json_forms.data(
            _state(ledger, params, 1).get_code(_address(params[0]))
        ),
        "eth_getStorageAt": _storage,
        "eth_getTransactionCount": _transaction_count,
        "eth_getBlockByNumber": _block_by_number,
        "eth_getBlockByHash": _block_by_hash,
        "eth_getTransactionByHash": _transaction,
        "eth_getTransactionReceipt": _receipt,
        "eth_getLogs": lambda ledger, params: event_logs.find(ledger, params[0]),
        "eth_call": _call,
        "eth_estimateGas": _estimate,
        "eth_sendRawTransaction": lambda ledger, params: json_forms.data(
            ledger.submit(bytes_of(params[0]))
        ),
        "devnet_export": lambda ledger, params: to_builtins(saved_chain.save(ledger)),
    }


def control_methods(clock: Callable[[], int]) -> dict[str, Method]:
    """Returns the methods that only tests may call.

    They make a block now (optionally not before a given time) and remove blocks.
    """

    def mine(ledger: Ledger, params: Params) -> Json:
        ledger.mine(max(clock(), int_of(params[0])) if params else clock())
        return "0x0"

    def reorganise(ledger: Ledger, params: Params) -> Json:
        ledger.reorganise(int_of(params[0]), clock())

    return {"evm_mine": mine, "anvil_reorg": reorganise}


def _address(value: Json) -> Address:
    return Address(bytes_of(value, 20))


def _state(ledger: Ledger, params: Params, place: int) -> Json:
    return ledger.state(block_at(ledger, params[place] if len(params) > place else "latest"))


def _storage(ledger: Ledger, params: Params) -> Json:
    value = _state(ledger, params, 2).get_storage(_address(params[0]), int_of(params[1]))
    return json_forms.data(int(value).to_bytes(32, "big"))


def _transaction_count(ledger: Ledger, params: Params) -> Json:
    account = _address(params[0])
    nonce = _state(ledger, params, 1).get_nonce(account)
    waits = len(params) > 1 and params[1] == "pending"
    return json_forms.quantity(ledger.pool.next_nonce(account, nonce) if waits else nonce)


def _block_by_number(ledger: Ledger, params: Params) -> Json:
    block = block_at(ledger, params[0], missing_ok=True)
    return None if block is None else json_forms.block_form(block, bool(params[1:] and params[1]))


def _block_by_hash(ledger: Ledger, params: Params) -> Json:
    block = ledger.block_of_hash(bytes_of(params[0], 32))
    return None if block is None else json_forms.block_form(block, bool(params[1:] and params[1]))


def _transaction(ledger: Ledger, params: Params) -> Json:
    wanted = bytes_of(params[0], 32)
    found = ledger.mined(wanted)
    if found is not None:
        return json_forms.transaction_form(found[1].pending, found)
    waiting = ledger.pool.get(wanted)
    return None if waiting is None else json_forms.transaction_form(waiting, None)


def _receipt(ledger: Ledger, params: Params) -> Json:
    found = ledger.mined(bytes_of(params[0], 32))
    return None if found is None else json_forms.receipt_form(*found)


def _call(ledger: Ledger, params: Params) -> Json:
    block = block_at(ledger, params[1] if len(params) > 1 else "latest")
    if len(params) > 2 and params[2]:
        raise RpcError(INVALID_PARAMS, "state overrides are not supported here")
    return json_forms.data(_succeeded(ledger.try_call(call_of(params[0]), block)).output)


def _estimate(ledger: Ledger, params: Params) -> Json:
    """Runs the call once with the most gas, and adds a margin, because a call may need more than it
    spends (63/64 rule, refunds). It does not bisect.
    """
    block = block_at(ledger, params[1] if len(params) > 1 else "latest")
    spent = _succeeded(ledger.try_call(call_of(params[0]), block)).gas_spent
    return json_forms.quantity(
        min(TRANSACTION_GAS_MAX, spent + spent // ESTIMATE_SHARE + ESTIMATE_FIXED)
        if spent > 21_000
        else spent
    )


def _succeeded(outcome: Outcome) -> Outcome:
    if not outcome.success:
        raise reverted(outcome.output, outcome.error)
    return outcome


def _fee_history(ledger: Ledger, params: Params) -> Json:
    count = int_of(params[0])
    if not 1 <= count <= FEE_HISTORY_MAX:
        raise RpcError(INVALID_PARAMS, f"1 to {FEE_HISTORY_MAX} blocks")
    newest = block_at(ledger, params[1] if len(params) > 1 else "latest")
    oldest = max(0, newest.number - count + 1)
    headers = [
        block.header
        for number in range(oldest, newest.number + 1)
        if (block := ledger.block(number))
    ]
    if not headers:
        raise RpcError(SERVER_ERROR, "no such blocks")
    fees = [json_forms.quantity(header.base_fee_per_gas or 0) for header in headers]
    percentiles = params[2] if len(params) > 2 and isinstance(params[2], list) else []
    return {
        "oldestBlock": json_forms.quantity(oldest),
        "baseFeePerGas": [*fees, fees[-1]],
        "gasUsedRatio": [header.gas_used / header.gas_limit for header in headers],
        "reward": [[json_forms.quantity(TIP_WEI) for _ in percentiles] for _ in headers],
    }
