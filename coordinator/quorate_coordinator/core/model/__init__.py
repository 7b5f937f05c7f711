"""The state of the core, and the events, effects and machines that all of its rooms share."""
