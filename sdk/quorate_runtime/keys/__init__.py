"""Keys: keystore, passphrases, signatures and boxes."""
