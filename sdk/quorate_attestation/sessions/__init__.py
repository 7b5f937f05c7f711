"""The parts of provider and verifier in a challenge: draw, time, and two state machines."""
