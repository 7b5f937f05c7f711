"""Reads and checks container images from `docker save` archives."""
