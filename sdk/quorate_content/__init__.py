"""Content-addressed data: true CIDs without a daemon, verified bounded-memory fetch, a
crash-safe store, a trustless gateway.

Pure modules: `varint`, `cid`, `dagpb`, `unixfs`, `walk`, `car`. With input and output: `tree`,
`sealed`, `index`, `locks`, `store`, `fetch`, `gateway`, `staging`. New data has the profile
`unixfs-v1-2025` (IPIP-499); any balanced UnixFS tree is read.
"""
