"""Turns local code into inputs of a job: files, a working folder, requirements, a function."""
