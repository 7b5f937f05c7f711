"""The devnet chain: py-evm behind a small JSON-RPC server, one block a second (PROTOCOL §9).

`accounts` (funded keys) · `precompiles` (native BLS) · `pool` (what waits) · `ledger` (blocks,
calls, receipts) · `forms` (JSON forms) · `methods` (JSON-RPC methods) · `server` (HTTP and the
clock) · `anvil` (the same, when anvil is on PATH).
"""
