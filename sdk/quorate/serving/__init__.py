"""Services: replicas of one server on rented machines, behind one address with keys."""
