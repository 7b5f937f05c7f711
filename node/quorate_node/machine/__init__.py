"""What the machine has: the host class of its CPU, its GPUs, and the run slots of both."""
