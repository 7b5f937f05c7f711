"""The arithmetic of a challenge with numpy: words, matrices, fingerprints, pages, their checks."""
