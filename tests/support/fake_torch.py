"""A package `torch` with the switches that the import hook turns, and nothing else."""

from pathlib import Path

SHOW = "print(torch.shown())"
TEXT = """
import json
from torch.backends import cudnn
import torch.backends as backends
on = [False]
def use_deterministic_algorithms(mode):
    {problem}
    on[0] = mode
def set(mode):
    on[0] = bool(mode)
    cudnn.benchmark, cudnn.deterministic = True, False
def shown():
    return json.dumps([on[0], cudnn.benchmark, cudnn.deterministic])
"""


def write_torch(folder: Path, breaks: str = "") -> None:
    """Writes the package below `folder`. `breaks`: the text of the error that it raises."""
    files = {
        "torch/__init__.py": TEXT.format(problem=f'raise RuntimeError("{breaks}")' * bool(breaks)),
        "torch/backends/__init__.py": "",
        "torch/backends/cudnn.py": "benchmark, deterministic = True, False\n",
        "torch/nn/__init__.py": "",
        "torch/nn/functional.py": "",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
