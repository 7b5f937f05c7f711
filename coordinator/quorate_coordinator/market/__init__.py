"""What providers and other coordinators send: frames, offers, attestations, public logs."""
