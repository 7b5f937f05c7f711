"""GPUs of the owner's machine: their inventory and their host classes."""
