"""HTTP as servers and clients of this project need it: bounded."""
