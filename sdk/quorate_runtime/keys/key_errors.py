"""The error of keys. It has a module of its own because the keystore loads ciphers."""


class KeystoreError(Exception):
    """A key cannot be used or written. The message names the file and the remedy."""
