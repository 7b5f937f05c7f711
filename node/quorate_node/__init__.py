"""quorate_node."""
