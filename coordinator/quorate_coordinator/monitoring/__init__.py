"""What the operator sees of a running coordinator: its status and its metrics."""
