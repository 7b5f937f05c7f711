"""What the machine has: the pool of its CPU, its GPUs, and the run slots of both."""
