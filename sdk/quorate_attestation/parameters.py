"""The sizes of a challenge: matrices, rounds, pages, chains, and how much of them is opened.

The sizes decide how long a challenge takes and how much a cheat can leave out (docs/protocol.md
§10). A verifier chooses them; the proof names them.
"""

from msgspec import Struct

from quorate_attestation.catalogue import CPU, Model
from quorate_protocol.refusals import Code, Refused

TILE = 256  # entries of one tile: consecutive entries of one row of a product
PAGE_BYTES = 1024
CHAIN_STEPS = 16  # pages that one chain reads
BUCKET = 32  # chains whose final states make one leaf
ORDER_MIN, ORDER_MAX = 256, 16_384
ROUNDS_MAX = 1024
TILES_MAX = 4096
PAGES_MAX = 1 << 30
PAGE_ROUNDS_MAX = 4096
CHAINS_MAX = 1 << 28
CHAINS_OPENED_MAX = 1024
BATCHES_MAX = 1024
GIB = 1 << 30
VRAM_SHARE_PERCENT = 93  # of the claimed memory that pages cover; matrices take the rest
SMALL_SHARE_PERCENT = 85  # of less than 8 GiB, as small MIG partitions have


class Parameters(Struct, frozen=True):
    """The sizes of one challenge of one GPU."""

    order: int  # n: rows and columns of the int8 matrices; a power of two
    rounds: int  # products, each seeded by the root of the one before
    tiles: int  # t: tiles opened, over all rounds
    pages: int  # pages of 1 KiB that must stay in memory
    page_rounds: int  # ChaCha double rounds of a page: what it costs to make it again
    chains: int  # chains of 16 page reads in each batch; a power of two
    batches: int  # of chains in each of two passes, each seeded by the root of the one before
    chains_opened: int  # chains opened in each pass

    def validate(self) -> None:
        """Raises `Refused(MALFORMED)` for sizes out of bounds."""
        is_good = (
            ORDER_MIN <= self.order <= ORDER_MAX
            and self.order.bit_count() == 1
            and 1 <= self.rounds <= ROUNDS_MAX
            and 1 <= self.tiles <= TILES_MAX
            and 1 <= self.pages <= PAGES_MAX
            and 1 <= self.page_rounds <= PAGE_ROUNDS_MAX
            and BUCKET <= self.chains <= CHAINS_MAX
            and self.chains.bit_count() == 1
            and 1 <= self.batches <= BATCHES_MAX
            and 1 <= self.chains_opened <= CHAINS_OPENED_MAX
        )
        if not is_good:
            raise Refused(
                Code.MALFORMED,
                f"parameters: order is a power of two from {ORDER_MIN} to {ORDER_MAX}, chains one "
                f"from {BUCKET} to {CHAINS_MAX}; see parameters.py for the other bounds",
            )

    @property
    def blocks(self) -> int:
        return self.order // TILE

    @property
    def tile_depth(self) -> int:
        """Hashes from a row's leaf to the root of a product."""
        return self.order.bit_length() - 1

    @property
    def chain_depth(self) -> int:
        """Hashes from a bucket's leaf to the root of a pass."""
        return (self.chains // BUCKET).bit_length() - 1

    @property
    def int8_operations(self) -> int:
        """Of all products: 2 n^3 a round."""
        return 2 * self.order**3 * self.rounds

    @property
    def pass_bytes(self) -> int:
        """Bytes of pages that the chains of one pass read."""
        return self.batches * self.chains * CHAIN_STEPS * PAGE_BYTES


CPU_PARAMETERS = Parameters(
    order=1024,
    rounds=4,
    tiles=256,
    pages=1 << 15,
    page_rounds=4,
    chains=1 << 12,
    batches=1,
    chains_opened=32,
)
"""For a machine without a GPU: some seconds on one core, 32 MiB of pages."""


def parameters_for(model: Model, vram_bytes: int) -> Parameters:
    """Smaller GPUs get smaller matrices: matrices and pages must fit together. Estimates until
    models are measured: each of the last two stages takes about 1 s on an H200, some seconds on a
    T4.
    """
    if model == CPU:
        return CPU_PARAMETERS
    if vram_bytes >= 40 * GIB - GIB:
        order, rounds, batches = ORDER_MAX, 128, 64
    elif vram_bytes >= 14 * GIB:
        order, rounds, batches = 8192, 512, 16
    else:
        order, rounds, batches = 4096, 1024, 8
    share = VRAM_SHARE_PERCENT if vram_bytes >= 8 * GIB else SMALL_SHARE_PERCENT
    return Parameters(
        order=order,
        rounds=rounds,
        tiles=1024,
        pages=max(1, vram_bytes * share // 100 // PAGE_BYTES),
        page_rounds=1024 if model.architecture == "ada" else 256,
        chains=1 << 22,
        batches=batches,
        chains_opened=128,
    )


def detection(parameters: Parameters, skipped_share: float) -> float:
    """Each of t independent draws meets a wrong tile with the share's probability; one that is met
    passes with at most 2^-24, see `arithmetic.product_check`.
    """
    missed = 1 - skipped_share * (1 - 2.0**-24)
    return 1.0 - float(missed**parameters.tiles)
