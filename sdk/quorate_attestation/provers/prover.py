"""The prover of one GPU: it answers each stage of a challenge with roots, then opens the sample.

Stage 0 fills the memory with pages and runs chains over them. Stage 1 computes the products while
the pages stay. Stage 2 runs chains over the same pages again.

To open, the prover computes again what the sample asks for. So it stores no products, which would
need a thousand times the memory.
"""

from collections import defaultdict
from collections.abc import Sequence

from quorate_attestation import seeds
from quorate_attestation.challenge import PAGES, PAGES_AGAIN, PRODUCTS, STAGES
from quorate_attestation.parameters import Parameters
from quorate_attestation.proof_document import Sections
from quorate_attestation.provers.engine import Engine, OpenedChains, OpenedTiles
from quorate_protocol.units import Hash32


class Prover:
    """Answers one challenge of one GPU with an engine. Its calls block for seconds."""

    def __init__(
        self, engine: Engine, parameters: Parameters, right_seed: int, base: Hash32
    ) -> None:
        """Reserves the engine's memory. `base` is `seeds.base_seed`."""
        self._engine, self._parameters, self._base = engine, parameters, base
        self._stage_seeds: list[Hash32] = []
        self._roots: list[tuple[Hash32, ...]] = []
        engine.begin(parameters, right_seed)

    def commit(self, nonces: tuple[Hash32, ...]) -> tuple[Hash32, ...]:
        """The verifiers of the next stage sent these nonces."""
        assert len(self._roots) < STAGES, "a challenge has three stages"
        earlier = tuple(root for roots in self._roots for root in roots)
        seed = seeds.stage_seed(self._base, len(self._roots), nonces, earlier)
        self._stage_seeds.append(seed)
        roots = self._products() if len(self._roots) == PRODUCTS else self._chains(seed)
        self._roots.append(roots)
        return roots

    def _chains(self, seed: Hash32) -> tuple[Hash32, ...]:
        if len(self._stage_seeds) == 1:
            self._engine.fill(seed)
        roots: list[Hash32] = []
        for number in range(self._parameters.batches):
            roots.append(self._batch(seed, number, roots[-1] if roots else b""))
        return tuple(roots)

    def _batch(self, seed: Hash32, number: int, earlier_root: bytes) -> Hash32:
        return Hash32(self._engine.run_chains(seeds.batch_seed(seed, number, earlier_root)))

    def _products(self) -> tuple[Hash32, ...]:
        roots: list[Hash32] = []
        for number in range(self._parameters.rounds):
            roots.append(self._product(number, roots[-1] if roots else b""))
        return tuple(roots)

    def _product(self, number: int, earlier_root: bytes) -> Hash32:
        left, salt = seeds.round_seeds(self._stage_seeds[PRODUCTS], number, earlier_root)
        return Hash32(self._engine.multiply(left, salt))

    def open(self, sample_seed: Hash32) -> Sections:
        """Returns the binary sections of the proof."""
        first = self._open_chains(sample_seed, 0, PAGES)
        tiles = self._open_tiles(sample_seed)
        second = self._open_chains(sample_seed, 1, PAGES_AGAIN)
        return Sections(
            tiles.tiles,
            tiles.rows,
            tiles.paths,
            first.buckets + second.buckets,
            first.paths + second.paths,
        )

    def _open_chains(self, sample_seed: Hash32, pass_number: int, stage: int) -> OpenedChains:
        drawn = seeds.drawn_chains(sample_seed, self._parameters, pass_number)
        shown: dict[int, OpenedChains] = {}
        for number, places in _by_first(drawn).items():
            self._batch(self._stage_seeds[stage], number, self._root_before(stage, number))
            for place in places:
                shown[place] = self._engine.open_chains([drawn[place][1]])
        ordered = [shown[place] for place in range(len(drawn))]
        return OpenedChains(*(b"".join(parts) for parts in zip(*ordered, strict=True)))

    def _open_tiles(self, sample_seed: Hash32) -> OpenedTiles:
        drawn = seeds.drawn_tiles(sample_seed, self._parameters)
        shown: dict[int, OpenedTiles] = {}
        for number, places in _by_first(drawn).items():
            self._product(number, self._root_before(PRODUCTS, number))
            for place in places:
                _, row, block = drawn[place]
                shown[place] = self._engine.open_tiles([(row, block)])
        ordered = [shown[place] for place in range(len(drawn))]
        return OpenedTiles(*(b"".join(parts) for parts in zip(*ordered, strict=True)))

    def _root_before(self, stage: int, number: int) -> bytes:
        return self._roots[stage][number - 1] if number else b""

    def close(self) -> None:
        self._engine.close()


def _by_first(drawn: Sequence[tuple[int, ...]]) -> dict[int, list[int]]:
    """Returns the places of what is drawn, by its round or batch."""
    found: dict[int, list[int]] = defaultdict(list)
    for place, item in enumerate(drawn):
        found[item[0]].append(place)
    return found
