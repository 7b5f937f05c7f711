"""CIDs, blocks, CARs and UnixFS trees."""
