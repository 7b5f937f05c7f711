"""Appeals of this provider against Verdicts that fault it (PROTOCOL §5)."""
