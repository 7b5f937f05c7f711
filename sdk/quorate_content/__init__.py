"""quorate_content."""
