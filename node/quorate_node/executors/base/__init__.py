"""What all executors share: outputs, slot users, limits, and what they ask of the Linux kernel."""
