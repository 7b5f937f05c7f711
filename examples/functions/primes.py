"""Counts primes on machines of strangers: python examples/functions/primes.py devnet/devnet.json

The image is your own Python: quorate image build --python -o hello.tar
"""

import asyncio
import sys

from quorate import Market


async def main(devnet: str) -> int:
    """Counts the primes below 400,000 in four parts, each computed twice by different owners."""
    async with Market(devnet) as market:

        @market.function(image="./hello.tar", max_price="5", max_duration="1m")
        def primes(low: int, high: int) -> int:
            sieve = bytearray([1]) * high
            for n in range(2, int(high**0.5) + 1):
                sieve[n * n :: n] = bytes(len(sieve[n * n :: n]))
            return sum(sieve[max(low, 2) :])

        starts = range(0, 400_000, 100_000)
        counts = await primes.map(starts, [start + 100_000 for start in starts])
        print(f"{sum(counts)} primes below 400,000: {counts}")
        return sum(counts)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
