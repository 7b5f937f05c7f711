"""Compiles the contracts and writes `abi/*.json` and `generated/`. For development only; no other
module imports the compiler.

Run `python -m quorate_contracts.compile` after a change of a .vy file. A test compares the
committed files with a fresh compilation. The creation code ends with a hash of all sources, so even
a changed comment changes it. Settings: the pragma's version, the legacy pipeline, and the default
`gas` optimisation (the experimental pipeline has known bugs).
"""

import json
from pathlib import Path
from typing import Any, cast

from vyper.compiler import compile_from_file_input
from vyper.compiler.input_bundle import FileInput, FilesystemInputBundle
from vyper.compiler.settings import OptimizationLevel, Settings

from quorate_contracts.artifact import CONTRACTS, FOLDER
from quorate_contracts.generated import binding_writer
from quorate_protocol.codec.hashing import keccak256

SOURCES = Path(__file__).parent / "vyper"
FORMATS = ["abi", "bytecode", "bytecode_runtime", "integrity", "layout", "solc_json", "userdoc"]


def compiled(name: str, sources: Path = SOURCES) -> dict[str, object]:
    """Returns what a contract's file holds, and the notices of its functions.

    That is its ABI, its creation code, size and hash of its runtime code, its immutables, its
    source files, and the integrity hash of all of them. An immutable is [name, bytes]. Their values
    follow the runtime code on chain, in this order.
    """
    bundle = FilesystemInputBundle([sources])
    source = bundle.load_file(f"{name}.vy")
    assert isinstance(source, FileInput)
    settings = Settings(optimize=OptimizationLevel.GAS, experimental_codegen=False)
    out = compile_from_file_input(
        source, input_bundle=bundle, settings=settings, output_formats=FORMATS
    )
    runtime = bytes.fromhex(out["bytecode_runtime"][2:])
    return {
        "abi": out["abi"],
        "bytecode": out["bytecode"],
        "runtime_bytes": len(runtime),
        "runtime_keccak": keccak256(runtime).hex(),
        "immutables": _immutables(out["layout"].get("code_layout", {})),
        "sources": sorted(Path(path).name for path in out["solc_json"]["sources"]),
        "integrity": out["integrity"],
        "notices": _notices(out["userdoc"]),
    }


def _notices(userdoc: dict[str, Any]) -> dict[str, str]:
    """Returns each external function's @notice by its signature."""
    methods: dict[str, dict[str, str]] = userdoc.get("methods", {})
    return {name: text["notice"] for name, text in methods.items() if text.get("notice")}


def _immutables(layout: dict[str, dict[str, object]]) -> list[tuple[str, int]]:
    """Returns the immutables of a contract and of its modules in their order on chain."""
    found: list[tuple[int, str, int]] = []
    for name, item in layout.items():
        for own, place in [(name, item)] if "offset" in item else item.items():
            assert isinstance(place, dict)
            found.append((int(place["offset"]), own, int(place["length"])))
    return [(name, length) for _, name, length in sorted(found)]


def text(name: str, sources: Path = SOURCES) -> str:
    made = compiled(name, sources)
    made.pop("notices")
    return _json(made)


def _json(made: dict[str, object]) -> str:
    return json.dumps(made, indent=1, sort_keys=True) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    written = {}
    for name in CONTRACTS:
        made = compiled(name)
        notices = cast(dict[str, str], made.pop("notices"))
        (FOLDER / f"{name}.json").write_text(_json(made))
        written[name] = binding_writer.text_of(name, cast(list[Any], made["abi"]), notices)
    binding_writer.write(written)


if __name__ == "__main__":
    main()
