"""`quorate chain`: puts the contracts of a market on a chain."""
