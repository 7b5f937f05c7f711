"""IPLD and UnixFS: CIDs, blocks, CARs, trees."""
