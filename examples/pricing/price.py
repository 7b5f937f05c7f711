"""Prices an Asian call option by Monte Carlo with integers only, so that every machine gives the
same digits.

    python3 price.py SEED OUTPUT.json [PATHS]

The payoff is max(average price - strike, 0), discounted. Prices are fixed-point with 20 fractional
bits, growth factors with 30. Random numbers are splitmix64 of a counter. The sum of twelve 16-bit
pieces approximates a normal variate (Irwin-Hall).

int64 never overflows: a price below 2^11 (2^31 scaled) times a growth factor below 4 (2^32 scaled)
stays under 2^63.
"""

import json
import sys
from pathlib import Path

import numpy as np

PRICE_BITS, GROWTH_BITS = 20, 30
START, STRIKE = 100 << PRICE_BITS, 100 << PRICE_BITS
STEPS = 24  # over one year
DRIFT = 2_236_962  # (rate 5 %) / STEPS, with 30 fractional bits: 0.05 / 24 * 2^30
SWING = 43_835_326  # volatility 20 % * sqrt(1 / STEPS), likewise: 0.2 / sqrt(24) * 2^30
DISCOUNT = 1_021_374_817  # exp(-0.05) * 2^30
PATHS = 200_000


def main(seed, output, paths):
    """Simulates and writes the sum of payoffs, with their mean in millionths."""
    total, squares = simulate(seed, paths)
    discounted = total * DISCOUNT >> GROWTH_BITS
    price_micro = discounted * 1_000_000 // (paths << PRICE_BITS)
    tree = {
        "seed": seed,
        "paths": paths,
        "steps": STEPS,
        "payoff_sum": total,
        "payoff_square_sum": squares,
        "price_micro": price_micro,
    }
    Path(output).write_text(json.dumps(tree, sort_keys=True) + "\n")
    print(f"seed {seed}: {paths} paths, price {price_micro / 1e6:.4f}")


def simulate(seed, paths):
    """Returns (sum of payoffs, sum of their squares), both with 20 fractional bits and
    undiscounted.
    """
    price = np.full(paths, START, dtype=np.int64)
    summed = np.zeros(paths, dtype=np.int64)
    lanes = np.arange(paths, dtype=np.uint64)
    for step in range(STEPS):
        swing = normal(seed, step, lanes) * SWING >> 16
        price = price * ((1 << GROWTH_BITS) + DRIFT + swing) >> GROWTH_BITS
        summed += price
    payoff = np.maximum(summed // STEPS - STRIKE, 0)
    return int(payoff.sum()), square_sum(payoff)


def square_sum(payoff):
    """Returns the sum of squares within 64 bits. Payoffs are below 2^31, and half of their
    fractional bits are enough.
    """
    return int(((payoff >> (PRICE_BITS // 2)) ** 2).sum())


def normal(seed, step, lanes):
    """Returns nearly standard normal integers with 16 fractional bits."""
    total = np.zeros(len(lanes), dtype=np.int64)
    for draw in range(3):
        word = splitmix64(
            (lanes * np.uint64(3) + np.uint64(draw))
            ^ np.uint64((seed * 1_000_003 + step) << 24 & (1 << 64) - 1)
        )
        for shift in (0, 16, 32, 48):
            total += ((word >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    return total - 6 * 0x10000 + 6


def splitmix64(values):
    """Mixes bits as Steele, Lea and Flood do. Unsigned 64-bit arithmetic wraps."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else PATHS)
