"""Provers: they compute what a challenge asks for, by numpy or by kernels on a GPU."""
