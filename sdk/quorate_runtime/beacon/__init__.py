"""The drand-format beacon: HTTP client and signature check."""
