"""Models of GPUs by their canonical names: what the driver calls them, and what people call them.

SM counts and memory come from NVIDIA's datasheets and architecture papers. `measured` holds what
reference runs of this software gave. It stays empty until somebody has measured a model.
"""

import re
from functools import cache

from msgspec import Struct

from quorate_attestation.catalogue_rows import ROWS
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.units import Hash32

GIB = 1 << 30
CPU_NAME = "cpu"
_WORD = re.compile(r"[a-z]+[0-9]*[a-z]*|[0-9]+[a-z]*")
_BRANDS = frozenset({"nvidia", "geforce", "tesla", "graphics", "generation"})


class Measured(Struct, frozen=True):
    """Medians of at least five reference runs of one model, with this software's kernels."""

    int8_ops_per_second: int
    memory_bytes_per_second: int
    runs: int


class Model(Struct, frozen=True):
    """One model of GPU."""

    name: str  # canonical
    driver_names: tuple[str, ...]  # as NVML reports them, without the brand
    aliases: tuple[str, ...]  # further names that people use; several models may share one
    architecture: str  # one of rules.classes.GPU_ARCHITECTURES, or "cpu"
    compute_capability: str  # "" for the CPU
    sm_count: int
    vram_bytes: int  # by the datasheet, where a GB is 2^30 bytes; 0 for the CPU
    measured: Measured | None = None

    def id(self) -> Hash32:
        """The model's name in a record: H("gpu-model", name)."""
        return hash_tuple("gpu-model", self.name)


CPU = Model(CPU_NAME, (), (), "cpu", "", 0, 0)
"""The model of a machine without a GPU. Its CPU is attested under its true name."""


@cache
def models() -> tuple[Model, ...]:
    """All models of GPUs in the catalogue, the newest architectures first."""
    return tuple(
        Model(name, names, aliases, architecture, capability, sm_count, gib * GIB)
        for name, names, aliases, architecture, capability, sm_count, gib in ROWS
    )


def model_of_driver_name(driver_name: str) -> Model | None:
    """The model that the driver reports under this name; None if the catalogue lacks it."""
    return _by_driver_name().get(_words(driver_name))


def models_called(text: str) -> tuple[Model, ...]:
    """The models that people mean by a name such as "H100", "rtx 4090" or "A100 80GB".

    An exact name or alias comes first. Otherwise all words of the text must occur in one of a
    model's names. Several models can have one name: "H100" is SXM5, PCIe and NVL.
    """
    asked = _words(text)
    if not asked:
        return ()
    exact = tuple(model for model in models() if asked in _names(model))
    if exact:
        return exact
    return tuple(
        model for model in models() if any(set(asked) <= set(name) for name in _names(model))
    )


def model_by_id(identity: Hash32) -> Model | None:
    """The model of a record's `model`; None if the catalogue lacks it."""
    return next((model for model in (*models(), CPU) if model.id() == identity), None)


@cache
def _by_driver_name() -> dict[tuple[str, ...], Model]:
    return {_words(name): model for model in models() for name in model.driver_names}


def _names(model: Model) -> tuple[tuple[str, ...], ...]:
    return tuple(_words(name) for name in (model.name, *model.driver_names, *model.aliases))


def _words(text: str) -> tuple[str, ...]:
    """Words of a name in order, in lower case, without brands: "RTX4090" is "rtx 4090"."""
    spaced = re.sub(r"\b(rtx|gtx)(?=[0-9])", r"\1 ", text[:128].lower())
    return tuple(word for word in _WORD.findall(spaced) if word not in _BRANDS)
