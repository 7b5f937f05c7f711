"""Fits a line by gradient descent: descent.py --lr=0.1 [--seed=0] OUTPUT

quorate run hello.tar --max-price 5 --file examples/sweep/descent.py --sweep lr=0.1,0.01 --seeds 2 \
    -o results -- --lr={lr} --seed={seed} /outputs/fit.json
"""

import argparse
import json
import random


def fit(rate: float, seed: int, steps: int = 200) -> dict[str, float]:
    """Returns slope, offset and squared error. The same rate and seed give the same digits."""
    chance = random.Random(seed)
    points = [(x / 10, 3 * x / 10 + 1 + chance.uniform(-0.1, 0.1)) for x in range(10)]
    slope = offset = 0.0
    for _ in range(steps):
        errors = [(slope * x + offset - y, x) for x, y in points]
        slope -= rate * sum(error * x for error, x in errors)
        offset -= rate * sum(error for error, _ in errors)
    loss = sum((slope * x + offset - y) ** 2 for x, y in points)
    return {"slope": slope, "offset": offset, "loss": loss}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("output")
    given = parser.parse_args()
    found = fit(given.lr, given.seed)
    print(found)
    with open(given.output, "w") as file:
        json.dump(found, file, sort_keys=True)
