"""What a block explorer needs to show that a contract's code comes from its source.

Beside deployment.json a folder gets, for each contract, a file in Vyper's standard JSON input with
all sources, and one file with the addresses and the encoded constructor arguments. The compiler
makes the same creation code from it anywhere.
"""

import json
from pathlib import Path

from quorate_contracts.abi_codec import encode
from quorate_contracts.artifact import artifact
from quorate_contracts.deploy import Plan
from quorate_runtime.files import PUBLIC_MODE, write_atomic

COMPILER = "v0.4.3+commit.bff19ea2"
ARGUMENTS = "contracts.json"
SOURCES = Path(__file__).parents[1] / "vyper"


def folder_of(out: Path) -> Path:
    return out.with_name(f"{out.stem}-verification")


def standard_json(name: str) -> dict[str, object]:
    files = artifact(name).sources
    return {
        "language": "Vyper",
        "sources": {file: {"content": (SOURCES / file).read_text()} for file in files},
        "settings": {
            "optimize": "gas",
            "experimentalCodegen": False,
            "search_paths": ["."],
            "outputSelection": {f"{name}.vy": ["abi", "evm.bytecode", "evm.deployedBytecode"]},
        },
    }


def write(out: Path, plan: Plan) -> Path:
    """Writes the folder of a deployment that was just made. A token that it took has no file."""
    folder = folder_of(out)
    folder.mkdir(exist_ok=True)
    facts: dict[str, object] = {}
    for creation in plan.creations:
        made = artifact(creation.name)
        given = encode(made.constructor, creation.arguments)
        facts[creation.name] = {
            "address": "0x" + creation.address.hex(),
            "compiler": COMPILER,
            "constructorArguments": "0x" + given.hex(),
            "runtimeHash": "0x" + made.runtime_hash.hex(),
            "input": f"{creation.name}.json",
        }
        _write(folder / f"{creation.name}.json", standard_json(creation.name))
    _write(folder / ARGUMENTS, facts)
    return folder


def _write(path: Path, tree: object) -> None:
    write_atomic(path, (json.dumps(tree, indent=1) + "\n").encode(), PUBLIC_MODE)
