"""What the executors ask of the Linux kernel: control groups, mounts, process ages, seccomp."""
