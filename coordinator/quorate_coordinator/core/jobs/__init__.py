"""A job from its order to its end: intake, assigning, what providers answer, retirement."""
