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
    ("RTX 5070 Ti", ("GeForce RTX 5070 Ti",), ("5070 Ti",), "blackwell", "12.0", 70, 16),
    ("RTX 5070", ("GeForce RTX 5070",), ("5070",), "blackwell", "12.0", 48, 12),
    ("GB10", ("GB10",), ("DGX Spark",), "blackwell", "12.1", 48, 128),  # shared with the CPU
    ("H200 SXM", ("H200",), (), "hopper", "9.0", 132, 141),
    ("H200 NVL", ("H200 NVL",), ("H200",), "hopper", "9.0", 132, 141),
    ("GH200", ("GH200 480GB", "GH200 120GB"), (), "hopper", "9.0", 132, 96),
    ("GH200 144GB", ("GH200 144G HBM3e",), ("GH200",), "hopper", "9.0", 132, 144),
    ("H100 SXM", ("H100 80GB HBM3",), ("H100", "H100 80GB", "H100 SXM5"), "hopper", "9.0", 132, 80),
    ("H100 NVL", ("H100 NVL",), ("H100", "H100 94GB"), "hopper", "9.0", 132, 94),
    ("H100 PCIe", ("H100 PCIe",), ("H100", "H100 80GB"), "hopper", "9.0", 114, 80),
    ("H20", ("H20",), (), "hopper", "9.0", 78, 96),
    ("L40S", ("L40S",), (), "ada", "8.9", 142, 48),
    ("L40", ("L40",), (), "ada", "8.9", 142, 48),
    ("L4", ("L4",), (), "ada", "8.9", 58, 24),
    ("RTX 6000 Ada", ("RTX 6000 Ada Generation",), ("A6000 Ada",), "ada", "8.9", 142, 48),
    ("RTX 4000 Ada", ("RTX 4000 Ada Generation",), (), "ada", "8.9", 48, 20),
    ("RTX 4090", ("GeForce RTX 4090",), ("4090",), "ada", "8.9", 128, 24),
    ("RTX 4090 D", ("GeForce RTX 4090 D",), ("4090 D", "4090D"), "ada", "8.9", 114, 24),
    ("RTX 4080 SUPER", ("GeForce RTX 4080 SUPER",), ("4080 SUPER",), "ada", "8.9", 80, 16),
    ("RTX 4080", ("GeForce RTX 4080",), ("4080",), "ada", "8.9", 76, 16),
    ("RTX 4070 Ti SUPER", ("GeForce RTX 4070 Ti SUPER",), (), "ada", "8.9", 66, 16),
    ("A100 SXM 80GB", ("A100-SXM4-80GB",), ("A100", "A100 80GB"), "ampere", "8.0", 108, 80),
    ("A100 PCIe 80GB", ("A100 80GB PCIe",), ("A100", "A100 80GB"), "ampere", "8.0", 108, 80),
    ("A100 SXM 40GB", ("A100-SXM4-40GB",), ("A100", "A100 40GB"), "ampere", "8.0", 108, 40),
    ("A100 PCIe 40GB", ("A100-PCIE-40GB",), ("A100", "A100 40GB"), "ampere", "8.0", 108, 40),
    ("A30", ("A30",), (), "ampere", "8.0", 56, 24),
    ("A40", ("A40",), (), "ampere", "8.6", 84, 48),
    ("A10", ("A10",), (), "ampere", "8.6", 72, 24),
    # Of AWS's g5 instances: https://aws.amazon.com/ec2/instance-types/g5/ (320 tensor cores).
    ("A10G", ("A10G",), (), "ampere", "8.6", 80, 24),
    ("RTX A6000", ("RTX A6000",), ("A6000",), "ampere", "8.6", 84, 48),
    ("RTX A5000", ("RTX A5000",), ("A5000",), "ampere", "8.6", 64, 24),
    ("RTX A4500", ("RTX A4500",), ("A4500",), "ampere", "8.6", 56, 20),
    ("RTX A4000", ("RTX A4000",), ("A4000",), "ampere", "8.6", 48, 16),
    ("RTX 3090 Ti", ("GeForce RTX 3090 Ti",), ("3090 Ti",), "ampere", "8.6", 84, 24),
    ("RTX 3090", ("GeForce RTX 3090",), ("3090",), "ampere", "8.6", 82, 24),
    ("RTX 3080 10GB", ("GeForce RTX 3080",), ("3080", "RTX 3080"), "ampere", "8.6", 68, 10),
    ("T4", ("Tesla T4",), (), "turing", "7.5", 40, 16),
    ("RTX 2080 Ti", ("GeForce RTX 2080 Ti",), ("2080 Ti",), "turing", "7.5", 68, 11),
    ("Quadro RTX 8000", ("Quadro RTX 8000",), (), "turing", "7.5", 72, 48),
    ("Quadro RTX 6000", ("Quadro RTX 6000",), (), "turing", "7.5", 72, 24),
)

SHARED_NAMES = frozenset({("RTX 3080 10GB", 70)})
"""Other SM counts of cards that the driver calls like the model: here the RTX 3080 with 12 GB."""

# Hardware on which no GPU job runs: name, vendor:device of PCI, what is missing. Sources: pci.ids,
# JAX's `hardware_utils.py`, and the table of AWS's Neuron driver.
OTHER_ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "Instinct MI300X",
        ("1002:74a1", "1002:74b5"),
        "GPU slots read NVIDIA's driver, and nobody has tried a profile with ROCm",
    ),
    (
        "TPU",
        tuple(f"1ae0:{device}" for device in ("0027", "005e", "0062", "0063", "006f", "0076")),
        "its host gives whole slices to one program, and there is no class for it",
    ),
    (
        "Trainium",
        tuple(f"1d0f:{device}" for device in ("7164", "7364", "7564", "7565")),
        "programs need AWS's compiler, and there is no class for it",
    ),
    (
        "Tesla V100",
        tuple(f"10de:{device}" for device in ("1db1", "1db4", "1db5", "1db6")),
        "classes begin with compute capability 7.5, and CUDA 13 left it out",
    ),
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


def contradiction(model: str, capability: str, sm_count: int) -> str:
    """Says why no whole GPU of this name has these figures. Returns "" if one has, or if no row has
    the name, as of a MIG partition.
    """
    asked = _words(model)
    known = tuple(each for each in models() if asked in _names(each))
    found = {(each.compute_capability, each.sm_count) for each in known}
    found |= {
        (each.compute_capability, sms)
        for each in known
        for name, sms in SHARED_NAMES
        if name == each.name
    }
    if not found or (capability, sm_count) in found:
        return ""
    has = " or ".join(f"{known} with {sms} SMs" for known, sms in sorted(found))
    return (
        f"gpu: {model[:96]} has compute capability {has}, not {capability[:16]} with {sm_count}; "
        "leave it out, or send us `quorate node selftest --gpu --json`"
    )


def other_hardware(pci_id: str) -> str:
    """Says what runs on hardware without GPU slots, by "1002:74a1"; "" for any other."""
    for name, pci_ids, missing in OTHER_ROWS:
        if pci_id in pci_ids:
            return f"{name}: nothing runs on it today ({missing}); CPU slots run beside it"
    return ""


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


def model_named(name: str) -> Model | None:
    """The one with exactly this canonical name."""
    return _by_name().get(name)


def model_by_id(identity: Hash32) -> Model | None:
    return next((model for model in (*models(), CPU) if model.id() == identity), None)


@cache
def _by_name() -> dict[str, Model]:
    return {model.name: model for model in models()}


@cache
def _by_driver_name() -> dict[tuple[str, ...], Model]:
    return {_words(name): model for model in models() for name in model.driver_names}


def _names(model: Model) -> tuple[tuple[str, ...], ...]:
    return tuple(_words(name) for name in (model.name, *model.driver_names, *model.aliases))


def _words(text: str) -> tuple[str, ...]:
    """In lower case, without brands: "RTX4090" is "rtx 4090"."""
    spaced = re.sub(r"\b(rtx|gtx)(?=[0-9])", r"\1 ", text[:128].lower())
    return tuple(word for word in _WORD.findall(spaced) if word not in _BRANDS)
