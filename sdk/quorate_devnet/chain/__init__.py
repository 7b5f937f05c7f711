"""The devnet chain: py-evm behind a small JSON-RPC server, one block a second (PROTOCOL §9).

`accounts` (funded keys) · `precompiles` (native BLS) · `transaction_pool` (waiting transactions) ·
`evm_chain` (blocks, calls, receipts) · `block_records` (what is kept of them) · `event_logs`
(eth_getLogs) · `json_forms`, `rpc_params`, `rpc_errors`, `rpc_methods` (JSON-RPC) · `server` (HTTP
and the clock) · `anvil_process` (the same chain by anvil).
"""

CHAIN_ID = 31337  # as every development chain has
