"""What every room of the node needs: configuration, settings file, keys."""
