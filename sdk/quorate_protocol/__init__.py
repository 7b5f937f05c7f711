"""The protocol: signed messages, their encoding, and the rules on trust and money."""
