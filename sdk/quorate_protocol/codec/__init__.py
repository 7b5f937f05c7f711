"""The canonical codec of everything that is signed."""
