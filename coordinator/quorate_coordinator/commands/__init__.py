"""Commands of `quorate coordinator` with a file of their own."""
