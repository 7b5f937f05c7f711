"""Content over HTTP: fetching, gateway, uploads."""
