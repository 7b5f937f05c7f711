"""Content over HTTP: fetching, the gateway, and uploads."""
