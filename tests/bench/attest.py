"""What a level-1 attestation costs its verifier: python tests/bench/attest.py [--json]

The tiles have the full size of a data-centre GPU (order 16,384, 1,024 tiles). A CPU makes only the
rows that are opened; the other leaves of the tree are zero. So the bench chooses the tiles, and
adds the cost of drawing them.

`verifier_cpu_seconds` is the check of all tiles of one GPU. `page_check_cpu_seconds` computes its
256 chains again, over pages of 256 double rounds. `prepare_cpu_seconds` is paid once for each
beacon round, whatever the number of GPUs.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from quorate_attestation import digest_tree, proof_document, seeds
from quorate_attestation.arithmetic import pages, proof_check
from quorate_attestation.arithmetic.proof_check import SecretKeeper
from quorate_attestation.arithmetic.word_stream import fingerprints, rows, words_from
from quorate_attestation.catalogue import models_called
from quorate_attestation.challenge import PRODUCTS
from quorate_attestation.parameters import TILE, Parameters, detection, parameters_for
from quorate_attestation.proof_document import Proof, ProofHeader, Sections, StageShown
from quorate_attestation.seeds import Tile
from quorate_protocol.units import ZERO_HASH, Hash32, Small
from quorate_protocol.values import replace
from support.attestation.challenges import DOMAIN, challenge, nonces

REPEATS = 5
SKIPPED_SHARE = 0.0136  # of a product, that a prover leaves out
TRIALS = 4000


def cpu_seconds(action: Callable[[], object]) -> float:
    """CPU seconds of one call, in all threads."""
    began = time.process_time()
    action()
    return time.process_time() - began


def opened_proof(parameters: Parameters) -> tuple[Proof, tuple[Tile, ...]]:
    """A proof of one round whose opened tiles are right, and the places of these tiles."""
    opened, sent = challenge(parameters), nonces(3, "bench")
    blank = tuple(StageShown(sent, (ZERO_HASH,)) for _ in range(3))
    header = ProofHeader(opened, Small(0), blank, sent)
    seed = proof_check.stage_seeds(Proof(header, Sections(b"", b"", b"", b"", b"")), DOMAIN)
    left_seed, salt = seeds.round_seeds(seed[PRODUCTS], 0, b"")
    chance = random.Random(1)
    numbers = np.array(sorted(chance.sample(range(parameters.order), parameters.tiles)))
    drawn = tuple((0, int(row), chance.randrange(parameters.blocks)) for row in numbers)
    left = rows(left_seed, numbers, parameters.order).astype(np.float64)
    tiles = np.empty((len(numbers), parameters.blocks, TILE), dtype=np.int32)
    for block in range(parameters.blocks):
        columns = np.arange(block * TILE, (block + 1) * TILE)
        right = rows(opened.right_seed(), columns, parameters.order).astype(np.float64)
        tiles[:, block] = (left @ right.T).astype(np.int32)
    prints = fingerprints(tiles, salt)
    leaves = [bytes(32)] * parameters.order
    for place, row in enumerate(numbers):
        leaves[row] = digest_tree.leaf(prints[place].tobytes())
    levels = digest_tree.levels_above(leaves)
    sections = Sections(
        b"".join(tiles[place, block].tobytes() for place, (_, _, block) in enumerate(drawn)),
        prints.tobytes(),
        b"".join(digest_tree.path(levels, row) for _, row, _ in drawn),
        b"",
        b"",
    )
    stages = (blank[0], StageShown(sent, (Hash32(levels[-1][0]),)), blank[2])
    return Proof(replace(header, stages=stages), sections), drawn


def tile_seconds(parameters: Parameters) -> tuple[float, float]:
    """CPU seconds of the check of all tiles, and of what is prepared once for each round."""
    proof, drawn = opened_proof(parameters)
    seed = proof_check.stage_seeds(proof, DOMAIN)[PRODUCTS]
    right = proof.header.challenge.right_seed()
    prepared, checked = [], []
    for repeat in range(REPEATS):
        keeper = SecretKeeper(bytes([repeat]) * 32)

        def check(keeper: SecretKeeper = keeper) -> None:
            seeds.drawn_tiles(seed, parameters)
            proof_check.check_drawn_tiles(proof, seed, drawn, keeper)

        def prepare(keeper: SecretKeeper = keeper) -> None:
            keeper.prepared(right, parameters.order)

        prepared.append(cpu_seconds(prepare))
        checked.append(cpu_seconds(check))
    return median(checked), median(prepared)


def page_seconds(parameters: Parameters) -> float:
    """CPU seconds of the chains of both passes."""
    starts = words_from(1, 0, 2 * parameters.chains_opened)
    return cpu_seconds(
        lambda: pages.final_states(bytes(32), starts, parameters.pages, parameters.page_rounds)
    )


def experiment() -> tuple[float, float]:
    """The measured and the computed share of samples that meet a skipped row, at a small size."""
    small = Parameters(512, 1, 64, 256, 1, 256, 1, 1)
    skipped = set(range(0, small.order, 25))
    noticed = 0
    for trial in range(TRIALS):
        drawn = seeds.drawn_tiles(Hash32(trial.to_bytes(32, "big")), small)
        noticed += any(row in skipped for _, row, _ in drawn)
    return noticed / TRIALS, detection(small, len(skipped) / small.order)


def figures() -> dict[str, object]:
    """All figures."""
    (model,) = models_called("H200 SXM")
    full = parameters_for(model, 140 << 30)
    (checked, prepared), (measured, computed) = (
        tile_seconds(replace(full, rounds=1, batches=1)),
        experiment(),
    )
    return {
        "order": full.order,
        "tiles": full.tiles,
        "verifier_cpu_seconds": round(checked, 4),
        "prepare_cpu_seconds": round(prepared, 3),
        "page_check_cpu_seconds": round(page_seconds(full), 3),
        "proof_mb": round(sum(proof_document.section_sizes(full)) / 1e6, 3),
        "skipped_share": SKIPPED_SHARE,
        "detection": detection(full, SKIPPED_SHARE),
        "detection_is_enough": detection(full, SKIPPED_SHARE) >= 1 - 2**-20,
        "small_detection_measured": round(measured, 4),
        "small_detection_computed": round(computed, 4),
    }


def main() -> None:
    """Prints the figures; with --json as one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    is_json = parser.parse_args().json
    found = figures()
    if is_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
