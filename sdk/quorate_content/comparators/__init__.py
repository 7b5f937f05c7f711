"""Compares the outputs of two executions that need not be equal to the bit."""
