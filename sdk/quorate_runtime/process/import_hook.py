"""Turns on PyTorch's deterministic algorithms right after a program has imported torch.

No variable does that. A node mounts this file as `sitecustomize.py` in a folder that it puts on
PYTHONPATH, so each Python of the job runs it at its start. It runs in the images of strangers:
only the standard library, and nothing newer than Python 3.7. A program that never imports torch
does not notice it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

EXIT_STATUS = 78  # EX_CONFIG of sysexits.h: the environment cannot be made as the job asks


class TorchFinder:
    """Lets the other finders find torch, and acts when its module has run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns None for every other module, so that the other finders are asked."""
        if name != "torch":
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _act_after(spec)
                return spec
        return None


def _act_after(spec: ModuleSpec) -> None:
    """Wraps this one loader's method. A loader of our own would hide its resources and source."""
    loader = spec.loader
    if loader is None:
        return  # a folder without __init__.py: no PyTorch
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        if module.__name__ == "torch":  # some loaders serve several modules
            make_deterministic(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


def make_deterministic(torch: ModuleType) -> None:
    """Ends the process if torch cannot do it: a result by chance could cost the owner's stake."""
    try:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    except Exception as error:  # noqa: BLE001 - whatever it is, the profile does not hold
        why = " ".join(f"{type(error).__name__}: {error}".split())
        sys.stdout.flush()
        sys.stderr.write(
            f"quorate: torch takes no deterministic algorithms ({why}); use an image with "
            "PyTorch 1.11 or newer, or write determinism: none\n"
        )
        sys.stderr.flush()
        # An exception could be caught, and in a thread it would end the thread alone.
        os._exit(EXIT_STATUS)


def run_the_next_sitecustomize() -> None:
    """The image may have one, which Python would have run in the place of this file."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [place for place in sys.path if os.path.abspath(place) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, TorchFinder())
    run_the_next_sitecustomize()
