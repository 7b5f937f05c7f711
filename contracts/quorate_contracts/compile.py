"""Compiles the contracts and writes `abi/*.json`. For development only; no other module imports
the compiler.

Run `python -m quorate_contracts.compile` after a change of a .vy file. A test compares the
committed files with a fresh compilation. The creation code ends with a hash of all sources, so even
a changed comment changes it. Settings: the pragma's version, the legacy pipeline, and the default
`gas` optimisation (the experimental pipeline has known bugs).
"""

import json
from pathlib import Path

from vyper.compiler import compile_from_file_input
from vyper.compiler.input_bundle import FileInput, FilesystemInputBundle
from vyper.compiler.settings import OptimizationLevel, Settings

from quorate_contracts.artifact import CONTRACTS, FOLDER

SOURCES = Path(__file__).parent / "vyper"
FORMATS = ["abi", "bytecode", "bytecode_runtime", "integrity"]


def compiled(name: str) -> dict[str, object]:
    """Returns one contract's ABI, creation code, size of the runtime code, and integrity hash of
    all its sources.
    """
    bundle = FilesystemInputBundle([SOURCES])
    source = bundle.load_file(f"{name}.vy")
    assert isinstance(source, FileInput)
    settings = Settings(optimize=OptimizationLevel.GAS, experimental_codegen=False)
    out = compile_from_file_input(
        source, input_bundle=bundle, settings=settings, output_formats=FORMATS
    )
    return {
        "abi": out["abi"],
        "bytecode": out["bytecode"],
        "runtime_bytes": len(out["bytecode_runtime"]) // 2 - 1,
        "integrity": out["integrity"],
    }


def text(name: str) -> str:
    """Returns the content of the artifact's file. Equal sources give equal files."""
    return json.dumps(compiled(name), indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Writes every artifact."""
    FOLDER.mkdir(exist_ok=True)
    for name in CONTRACTS:
        (FOLDER / f"{name}.json").write_text(text(name))


if __name__ == "__main__":
    main()
