"""What every room of the coordinator needs: configuration, settings file, keys, limits."""
