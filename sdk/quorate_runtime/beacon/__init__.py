"""Random rounds in drand's format: the HTTP client of a beacon, and the check of its signatures."""
