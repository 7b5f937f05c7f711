"""Parses GPU requests of job files and `--gpu`: "H100", "H100:2", "24GB..", "24GB..:2", "2"."""

import re

from quorate.base.errors import UsageError
from quorate.job.quantities import TEXT_MAX, parse_size
from quorate_protocol.messages.job_spec import GpuRequest

_CAPABILITY = re.compile(r"([1-9][0-9]?)(?:\.([0-9]))?", re.ASCII)
_MODEL = re.compile(r"[A-Za-z][A-Za-z0-9 ._-]{0,63}")


def parse_gpu(value: str | int, field: str) -> GpuRequest:
    """Parses a GPU request. An empty model means any GPU with that much memory; only a lower bound
    can be given.
    """
    text = str(value).strip()
    if isinstance(value, bool) or not text:
        raise UsageError(f'{field}: write a GPU such as "H100:2", "24GB..:1" or 1')
    if text.isascii() and text.isdecimal():
        return GpuRequest(_count(text, field), "", 0)
    head, _, count_text = text.partition(":")
    count = _count(count_text, field) if ":" in text else 1
    if head[:1].isdecimal():
        low, _, high = head.partition("..")
        if high:
            raise UsageError(
                f"{field}: an upper bound of GPU memory is not supported; write {low}..:{count}"
            )
        vram = parse_size(low, field)
        return GpuRequest(count, "", vram)
    if not _MODEL.fullmatch(head):
        raise UsageError(
            f'{field}: {text[:TEXT_MAX]!r} is not a GPU; write it such as "H100:2" or "24GB..:1"'
        )
    return GpuRequest(count, head, 0)


def parse_capability(value: str | int, field: str) -> int:
    """Parses a compute capability or version such as "8.9". Returns ten times the number."""
    match = _CAPABILITY.fullmatch(str(value).strip())
    if isinstance(value, bool) or match is None:
        raise UsageError(f'{field}: write a compute capability or CUDA version such as "8.9" or 9')
    return int(match[1]) * 10 + int(match[2] or 0)


def _count(text: str, field: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= 64):
        raise UsageError(f"{field}: {text[:TEXT_MAX]!r} is not a number of GPUs; write 1 to 64")
    return int(text)
