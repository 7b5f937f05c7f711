"""Text for terminals: tables, safe text, and sentences for errors of the system."""
