"""Content-addressed data: CIDs, UnixFS trees and CARs, verified fetches, a crash-safe store, and an
HTTP gateway.

`dag` computes and reads blocks, `store` keeps objects on disk, `transfer` moves them over HTTP, and
`images` reads container images. `sealed` encrypts outputs. No IPFS daemon is needed. New trees use
the profile `unixfs-v1-2025` (IPIP-499); readers accept any balanced UnixFS tree.
"""
