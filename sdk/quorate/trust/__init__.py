"""What the client checks before it believes or signs something."""
