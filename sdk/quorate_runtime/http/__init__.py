"""HTTP servers and clients with bounds on connections, bytes and time."""
