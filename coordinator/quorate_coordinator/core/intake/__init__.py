"""What clients send about their jobs: orders, witnesses and stops."""
