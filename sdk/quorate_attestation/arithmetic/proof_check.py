"""Checks the arithmetic of a proof: opened tiles and opened chains, against the roots."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from quorate_attestation import digest_tree, seeds
from quorate_attestation.arithmetic.pages import final_states
from quorate_attestation.arithmetic.product_check import ProductSecret, are_right, prepare
from quorate_attestation.arithmetic.word_stream import fingerprints, words_at
from quorate_attestation.challenge import PAGES, PRODUCTS
from quorate_attestation.parameters import BUCKET, TILE
from quorate_attestation.proof_document import Proof, chain_stages, product_roots
from quorate_attestation.seeds import Chain, Tile
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32

Prepare = Callable[[int, int], ProductSecret]
"""Gives the verifier's secret for a right matrix, by its seed and order."""


class SecretKeeper:
    """A verifier's secret, prepared once for each right matrix; keeps the newest four."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.prepared: Prepare = lru_cache(maxsize=4)(self._prepare)

    def _prepare(self, right_seed: int, order: int) -> ProductSecret:
        tag = right_seed.to_bytes(8, "little") + order.to_bytes(4, "little")
        return prepare(right_seed, order, seeds.stream_seed(Hash32(self._secret), b"secret" + tag))


def check(proof: Proof, domain: Domain, keeper: SecretKeeper) -> None:
    """Raises `Refused(DOES_NOT_OPEN)` with what is wrong first."""
    of_stages = stage_seeds(proof, domain)
    sample = proof.header.sample_seed()
    check_tiles(proof, of_stages[PRODUCTS], sample, keeper)
    check_chains(proof, of_stages, sample)


def stage_seeds(proof: Proof, domain: Domain) -> list[Hash32]:
    header = proof.header
    base = header.challenge.base_seed(domain, header.gpu)
    found: list[Hash32] = []
    earlier: tuple[Hash32, ...] = ()
    for number, stage in enumerate(header.stages):
        found.append(seeds.stage_seed(base, number, stage.nonces, earlier))
        earlier += stage.roots
    return found


def check_tiles(proof: Proof, seed: Hash32, sample: Hash32, keeper: SecretKeeper) -> None:
    """Under the roots, and right modulo p."""
    check_drawn_tiles(proof, seed, seeds.drawn_tiles(sample, proof.header.parameters), keeper)


def check_drawn_tiles(
    proof: Proof, seed: Hash32, drawn: tuple[Tile, ...], keeper: SecretKeeper
) -> None:
    """`seed` is that of the stage of products."""
    header, parameters = proof.header, proof.header.parameters
    roots = (b"", *product_roots(header))
    streams = {number: seeds.round_seeds(seed, number, roots[number]) for number, _, _ in drawn}
    tiles = np.frombuffer(proof.sections.tiles, dtype="<i4").reshape(-1, TILE).astype(np.int32)
    _check_leaves(proof, drawn, _fingerprints(tiles, drawn, streams))
    columns = np.array(drawn, dtype=np.int64)
    lefts = np.array([streams[number][0] for number, _, _ in drawn], dtype=np.uint64)
    secret = keeper.prepared(header.challenge.right_seed(), parameters.order)
    good = are_right(secret, lefts, columns[:, 1], columns[:, 2], tiles)
    if not good.all():
        number, row, block = drawn[int(np.argmin(good))]
        raise Refused(
            Code.DOES_NOT_OPEN, f"proof: tile {block} of row {row} in round {number} is wrong"
        )


def _fingerprints(
    tiles: npt.NDArray[np.int32], drawn: tuple[Tile, ...], streams: dict[int, tuple[int, int]]
) -> npt.NDArray[np.uint64]:
    numbers = np.array([number for number, _, _ in drawn])
    found = np.empty(len(drawn), dtype=np.uint64)
    for number, (_, salt) in streams.items():
        mine = numbers == number
        found[mine] = fingerprints(tiles[mine], salt)
    return found


def _check_leaves(proof: Proof, drawn: tuple[Tile, ...], prints: npt.NDArray[np.uint64]) -> None:
    """Each tile's fingerprint stands in its row, and the row under its root."""
    parameters, sections = proof.header.parameters, proof.sections
    roots = product_roots(proof.header)
    row_bytes, path_bytes = 8 * parameters.blocks, 32 * parameters.tile_depth
    shown = np.frombuffer(sections.rows, dtype="<u8").reshape(-1, parameters.blocks)
    for place, (number, row, block) in enumerate(drawn):
        leaf = digest_tree.leaf(sections.rows[place * row_bytes : (place + 1) * row_bytes])
        path = sections.tile_paths[place * path_bytes : (place + 1) * path_bytes]
        is_same = shown[place, block] == prints[place]
        if not is_same or digest_tree.root_of(leaf, row, path) != roots[number]:
            raise Refused(
                Code.DOES_NOT_OPEN,
                f"proof: tile {block} of row {row} is not what round {number} committed",
            )


def check_chains(proof: Proof, of_stages: list[Hash32], sample: Hash32) -> None:
    """Makes the pages that the opened chains read again."""
    parameters, sections = proof.header.parameters, proof.sections
    bucket_bytes, path_bytes = 8 * BUCKET, 32 * parameters.chain_depth
    count = parameters.chains_opened
    buckets = np.frombuffer(sections.buckets, dtype="<u8").reshape(-1, BUCKET)
    for number, stage in enumerate(chain_stages()):
        drawn = seeds.drawn_chains(sample, parameters, number)
        roots = proof.header.stages[stage].roots
        starts = _starts(of_stages[stage], roots, drawn)
        ends = final_states(of_stages[PAGES], starts, parameters.pages, parameters.page_rounds)
        for place, (batch, chain) in enumerate(drawn):
            at = number * count + place
            leaf = digest_tree.leaf(sections.buckets[at * bucket_bytes : (at + 1) * bucket_bytes])
            path = sections.chain_paths[at * path_bytes : (at + 1) * path_bytes]
            is_right = buckets[at, chain % BUCKET] == ends[place]
            if not is_right or digest_tree.root_of(leaf, chain // BUCKET, path) != roots[batch]:
                raise Refused(
                    Code.DOES_NOT_OPEN,
                    f"proof: chain {chain} of batch {batch} in pass {number} is wrong: memory is "
                    "missing or skipped",
                )


def _starts(
    seed: Hash32, roots: tuple[Hash32, ...], drawn: tuple[Chain, ...]
) -> npt.NDArray[np.uint64]:
    places = np.array(drawn, dtype=np.int64)
    found = np.empty(len(drawn), dtype=np.uint64)
    for batch in np.unique(places[:, 0]):
        mine = places[:, 0] == batch
        stream = seeds.batch_seed(seed, int(batch), roots[batch - 1] if batch else b"")
        found[mine] = words_at(stream, places[mine, 1].astype(np.uint64))
    return found
