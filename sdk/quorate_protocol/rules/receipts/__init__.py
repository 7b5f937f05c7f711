"""The checks of a receipt: one function, in parts (PROTOCOL §7)."""
