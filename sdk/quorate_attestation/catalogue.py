"""Models of GPUs by their canonical names: what the driver calls them, and what people call them.

SM counts and memory come from NVIDIA's datasheets and architecture papers. `measured` holds what
reference runs of this software gave. It stays empty until somebody has measured a model.
"""

import re
from functools import cache

from msgspec import Struct

from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.units import Hash32

# The rows of the catalogue.
#
# Each row: name, names by the driver, aliases, architecture, compute capability, SMs, GiB of
# memory. Sources: NVIDIA's datasheets and architecture papers, and names that drivers report.

Row = tuple[str, tuple[str, ...], tuple[str, ...], str, str, int, int]

ROWS: tuple[Row, ...] = (
    ("B200 SXM", ("B200",), (), "blackwell", "10.0", 148, 180),
    (
        "RTX PRO 6000 Blackwell",
        (
            "RTX PRO 6000 Blackwell Server Edition",
            "RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
        ("RTX PRO 6000",),
        "blackwell",
        "12.0",
        188,
        96,
    ),
    ("RTX 5090", ("GeForce RTX 5090",), ("5090",), "blackwell", "12.0", 170, 32),
    ("RTX 5080", ("GeForce RTX 5080",), ("5080",), "blackwell", "12.0", 84, 16),
    ("H200 SXM", ("H200",), (), "hopper", "9.0", 132, 141),
    ("H200 NVL", ("H200 NVL",), ("H200",), "hopper", "9.0", 132, 141),
    ("GH200", ("GH200 480GB",), (), "hopper", "9.0", 132, 96),
    ("H100 SXM", ("H100 80GB HBM3",), ("H100", "H100 80GB", "H100 SXM5"), "hopper", "9.0", 132, 80),
    ("H100 NVL", ("H100 NVL",), ("H100", "H100 94GB"), "hopper", "9.0", 132, 94),
    ("H100 PCIe", ("H100 PCIe",), ("H100", "H100 80GB"), "hopper", "9.0", 114, 80),
    ("H20", ("H20",), (), "hopper", "9.0", 78, 96),
    ("L40S", ("L40S",), (), "ada", "8.9", 142, 48),
    ("L40", ("L40",), (), "ada", "8.9", 142, 48),
    ("L4", ("L4",), (), "ada", "8.9", 58, 24),
    ("RTX 6000 Ada", ("RTX 6000 Ada Generation",), ("A6000 Ada",), "ada", "8.9", 142, 48),
    ("RTX 4090", ("GeForce RTX 4090",), ("4090",), "ada", "8.9", 128, 24),
    ("RTX 4090 D", ("GeForce RTX 4090 D",), ("4090 D", "4090D"), "ada", "8.9", 114, 24),
    ("RTX 4080", ("GeForce RTX 4080",), ("4080",), "ada", "8.9", 76, 16),
    ("A100 SXM 80GB", ("A100-SXM4-80GB",), ("A100", "A100 80GB"), "ampere", "8.0", 108, 80),
    ("A100 PCIe 80GB", ("A100 80GB PCIe",), ("A100", "A100 80GB"), "ampere", "8.0", 108, 80),
    ("A100 SXM 40GB", ("A100-SXM4-40GB",), ("A100", "A100 40GB"), "ampere", "8.0", 108, 40),
    ("A100 PCIe 40GB", ("A100-PCIE-40GB",), ("A100", "A100 40GB"), "ampere", "8.0", 108, 40),
    ("A30", ("A30",), (), "ampere", "8.0", 56, 24),
    ("A40", ("A40",), (), "ampere", "8.6", 84, 48),
    ("A10", ("A10",), (), "ampere", "8.6", 72, 24),
    ("RTX A6000", ("RTX A6000",), ("A6000",), "ampere", "8.6", 84, 48),
    ("RTX A5000", ("RTX A5000",), ("A5000",), "ampere", "8.6", 64, 24),
    ("RTX A4000", ("RTX A4000",), ("A4000",), "ampere", "8.6", 48, 16),
    ("RTX 3090 Ti", ("GeForce RTX 3090 Ti",), ("3090 Ti",), "ampere", "8.6", 84, 24),
    ("RTX 3090", ("GeForce RTX 3090",), ("3090",), "ampere", "8.6", 82, 24),
    ("RTX 3080 10GB", ("GeForce RTX 3080",), ("3080", "RTX 3080"), "ampere", "8.6", 68, 10),
    ("T4", ("Tesla T4",), (), "turing", "7.5", 40, 16),
    ("RTX 2080 Ti", ("GeForce RTX 2080 Ti",), ("2080 Ti",), "turing", "7.5", 68, 11),
    ("Quadro RTX 8000", ("Quadro RTX 8000",), (), "turing", "7.5", 72, 48),
    ("Quadro RTX 6000", ("Quadro RTX 6000",), (), "turing", "7.5", 72, 24),
)


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
    architecture: str  # as its maker calls it, such as "hopper"; "cpu"
    compute_capability: str  # "" for the CPU
    sm_count: int
    vram_bytes: int  # by the datasheet, where a GB is 2^30 bytes; 0 for the CPU
    measured: Measured | None = None

    def id(self) -> Hash32:
        """The model's name in a record: H("gpu-model", name)."""
        return hash_tuple("gpu-model", self.name)


CPU = Model(
    name=CPU_NAME,
    driver_names=(),
    aliases=(),
    architecture="cpu",
    compute_capability="",
    sm_count=0,
    vram_bytes=0,
)
"""The model of a machine without a GPU. Its CPU is attested under its true name."""


@cache
def models() -> tuple[Model, ...]:
    return tuple(
        Model(
            name=name,
            driver_names=names,
            aliases=aliases,
            architecture=architecture,
            compute_capability=capability,
            sm_count=sm_count,
            vram_bytes=gib * GIB,
        )
        for name, names, aliases, architecture, capability, sm_count, gib in ROWS
    )


def model_of_driver_name(driver_name: str) -> Model | None:
    return _by_driver_name().get(_words(driver_name))


def models_called(text: str) -> tuple[Model, ...]:
    """An exact name or alias comes first; else all words must occur in one name."""
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
    return next((model for model in (*models(), CPU) if model.id() == identity), None)


@cache
def _by_driver_name() -> dict[tuple[str, ...], Model]:
    return {_words(name): model for model in models() for name in model.driver_names}


def _names(model: Model) -> tuple[tuple[str, ...], ...]:
    return tuple(_words(name) for name in (model.name, *model.driver_names, *model.aliases))


def _words(text: str) -> tuple[str, ...]:
    """In lower case, without brands: "RTX4090" is "rtx 4090"."""
    spaced = re.sub(r"\b(rtx|gtx)(?=[0-9])", r"\1 ", text[:128].lower())
    return tuple(word for word in _WORD.findall(spaced) if word not in _BRANDS)
