"""Content of a devnet by its CID: peers of an IPFS network, or a gateway that stands for them."""
