"""Whether a GPU slot has what a job asks for. Client, coordinator and provider decide alike.

The catalogue says which models a name means. A model that the catalogue lacks has its offered name.
"""

from functools import lru_cache

from quorate_attestation.catalogue import model_named, models_called
from quorate_protocol.messages.classes import Host, Pool
from quorate_protocol.messages.job_spec import GpuRequest
from quorate_protocol.messages.offer import SlotOffer
from quorate_protocol.quantity_input import size_text

_GB = 10**9


def shortfalls(slot: SlotOffer, wanted: GpuRequest) -> tuple[str, ...]:
    """In words; empty if it has everything."""
    found = []
    if not slot.pool.is_gpu:
        return ("it has no GPU",)
    if wanted.count > slot.pool.gpus:
        found.append(f"it has {slot.pool.gpus} GPUs, the job asks for {wanted.count}")
    if wanted.model and slot.gpu.lower() not in names_called(wanted.model):
        found.append(f"its model is {slot.gpu}, the job asks for {wanted.model}")
    if wanted.vram_bytes_min > slot.vram_bytes:
        found.append(
            f"its GPU has {size_text(slot.vram_bytes)} of memory, the job asks for "
            f"{size_text(wanted.vram_bytes_min)}"
        )
    has = capability_of(slot.host)
    if wanted.compute_capability_min > has:
        found.append(
            f"its compute capability is {number_of(has)}, the job asks for "
            f"{number_of(wanted.compute_capability_min)}"
        )
    if wanted.cuda_min > slot.cuda:
        has_cuda = f"supports CUDA {number_of(slot.cuda)}" if slot.cuda else "names no CUDA"
        found.append(f"its driver {has_cuda}, the job asks for {number_of(wanted.cuda_min)}")
    return tuple(found)


def may_fit(pool: Pool, wanted: GpuRequest) -> bool:
    """Whether the pool's own fields and the catalogue allow it. What a job does not ask for by its
    name must be in the catalogue, as no partition is.
    """
    if not pool.is_gpu or wanted.count > pool.gpus:
        return False
    name = f"{pool.gpu} {pool.mig_profile}".strip()
    is_named = name.lower() in names_called(wanted.model)
    model = model_named(name)
    if model is None or (wanted.model and not is_named):
        return is_named
    has = tenfold(model.compute_capability)
    return wanted.vram_bytes_min <= model.vram_bytes and wanted.compute_capability_min <= has


@lru_cache(maxsize=1024)
def names_called(text: str) -> frozenset[str]:
    """The catalogue's names and the text itself, in lower case. Empty for ""."""
    if not text:
        return frozenset()
    return frozenset({text.lower(), *(model.name.lower() for model in models_called(text))})


def capability_of(host: Host) -> int:
    """Ten times the compute capability; 0 without a GPU."""
    return tenfold(host.capability)


def tenfold(number: str) -> int:
    """ "9.0" is 90; 0 for what is no such number."""
    major, _, minor = number.partition(".")
    is_number = major.isdecimal() and minor.isdecimal()
    return int(major) * 10 + int(minor) if is_number else 0


def number_of(tenfold: int) -> str:
    """90 is "9.0"."""
    return f"{tenfold // 10}.{tenfold % 10}"


def describe_slot(slot: SlotOffer) -> str:
    """For people: "2x A100 SXM 80GB", with memory if the name has none. Without attestation it is
    the driver's name.
    """
    told = "" if slot.attestation_level else " (reported)"
    memory = "" if "GB" in slot.gpu else f" {(slot.vram_bytes + _GB // 2) // _GB} GB"
    return f"{slot.pool.gpus}x {slot.gpu}{memory}{told}"
