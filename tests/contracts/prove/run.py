"""Proves properties of the contracts' code with halmos, for every storage and every argument.

    make prove                          all properties, and each again on a contract that breaks it
    make prove ARGS="--only draw"    those with this in their name

halmos reads what Foundry builds: artifacts in `out/`. So this program writes such a folder. It
holds code as a deployment has it on chain, immutables included, and contracts in Vyper whose
`check_` functions state the properties. halmos (AGPL) is a program in an environment of its own.
Ends with 1 if a property does not hold, or holds although its rule was broken.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vyper.compiler import compile_from_file_input
from vyper.compiler.input_bundle import FileInput, FilesystemInputBundle

from contracts.evm import GENESIS_TIME, PyEvm
from contracts.prove.properties import DEPLOYED, FOLDER, PROPERTIES, Property
from quorate_contracts.abi_codec import encode
from quorate_contracts.artifact import CONTRACTS
from quorate_contracts.compile import SOURCES, compiled
from quorate_contracts.constructors import constructor_arguments
from quorate_contracts.deploy import Creation, created_address
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Address
from quorate_runtime.keys.bls import keygen, public_key

HALMOS = Path(".venv-prove/bin/halmos")
CALLER = Address(bytes.fromhex("7fa9385be102ac3eac297483dd6233d62b3e1496"))
"""halmos' address of a contract with properties, which is every neighbour of the proven one."""
DEPLOYER = Address(b"\x11" * 20)
RETURNS_SIX = bytes.fromhex("600660005260206000f3")  # the decimals of a token
OPTIONS = ("--storage-layout", "generic", "--loop", "40", "--solver-timeout-assertion", "300s")
RUN_SECONDS = 1800
OUTCOMES = ("holds", "broken", "no answer in time", "stuck", "no path succeeds", "exception")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What halmos says of a property. `paths` are those that it followed."""

    said: str
    paths: int
    seconds: float


def on_chain(name: str, sources: Path) -> bytes:
    """Returns a contract's code as a deployment has it, with CALLER for each neighbour."""
    made = compiled(name, sources)
    places = dict.fromkeys(CONTRACTS, CALLER)
    key = public_key(keygen(b"contract tests, local beacon"))
    beacon = BeaconInfo(key, DEVNET.beacon_period, GENESIS_TIME)
    values = constructor_arguments(places, DEVNET, beacon, False)[name]
    abi: Any = made["abi"]
    types = [
        each["type"] for item in abi if item["type"] == "constructor" for each in item["inputs"]
    ]
    data = bytes.fromhex(str(made["bytecode"])[2:]) + encode(types, values)
    evm, place = PyEvm.made(), created_address(DEPLOYER, 0)
    evm.place(CALLER, RETURNS_SIX)
    evm.create(Creation(name, place, 0, values, data, 8_000_000), DEPLOYER)
    return evm.code(place)


def build(folder: Path, sources: Path, proofs: Iterable[str]) -> None:
    """Writes the artifacts of some proofs, and of the contracts that they call."""
    for name in proofs:
        called = DEPLOYED[name]
        if called is not None:
            _write(folder, called, on_chain(called, sources), [], {})
        source = FilesystemInputBundle([sources, FOLDER]).load_file(f"{name}.vy")
        assert isinstance(source, FileInput)
        out = compile_from_file_input(
            source,
            input_bundle=FilesystemInputBundle([sources]),
            output_formats=["abi", "bytecode", "method_identifiers"],
        )
        selectors = {key: value[2:].zfill(8) for key, value in out["method_identifiers"].items()}
        _write(folder, name, bytes.fromhex(out["bytecode"][2:]), out["abi"], selectors)
    forge = folder / "bin" / "forge"  # halmos starts it to build: here all is built
    forge.parent.mkdir()
    forge.write_text("#!/bin/sh\n")
    forge.chmod(0o755)


def _write(folder: Path, name: str, code: bytes, abi: Any, selectors: dict[str, str]) -> None:
    place = folder / "out" / f"{name}.sol"
    place.mkdir(parents=True)
    code_of = {"object": "0x" + code.hex(), "linkReferences": {}, "sourceMap": ""}
    node = {"nodeType": "ContractDefinition", "name": name, "contractKind": "contract"}
    document = {
        "abi": abi,
        "bytecode": code_of,
        "deployedBytecode": code_of,
        "methodIdentifiers": selectors,
        "metadata": {"compiler": {"version": "0.4.3"}},
        "id": 0,
        "ast": {"absolutePath": f"{name}.sol", "nodes": [node]},
    }
    (place / f"{name}.json").write_text(json.dumps(document))


def proven(sources: Path, wanted: Sequence[Property]) -> dict[str, Outcome]:
    """Runs halmos on properties of the contracts in a folder of sources."""
    with TemporaryDirectory(prefix="prove-") as name:
        folder = Path(name)
        build(folder, sources, {each.proofs for each in wanted})
        told = folder / "told.json"
        names = "|".join(each.function for each in wanted)
        subprocess.run(
            [
                *(str(HALMOS.absolute()), "--root", name, *OPTIONS, "--no-status"),
                *("--json-output", str(told), "--match-test", rf"^({names})\("),
            ],
            env=os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=RUN_SECONDS,
            check=False,
        )
        results = json.loads(told.read_text())["test_results"]
    return {
        test["name"].partition("(")[0]: Outcome(
            OUTCOMES[test["exitcode"]] if not test["num_bounded_loops"] else "loops cut off",
            test["num_paths"][0] if test["num_paths"] else 0,
            test["time"][0] if test["time"] else 0.0,
        )
        for tests in results.values()
        for test in tests
    }


def noticed(each: Property) -> Outcome:
    """Proves a property of a contract that breaks its rule."""
    with TemporaryDirectory(prefix="mutant-") as name:
        sources = Path(name) / "vyper"
        shutil.copytree(SOURCES, sources)
        file = sources / f"{each.source}.vy"
        file.write_text(each.broken(file.read_text()))
        return proven(sources, [each])[each.function]


def main() -> int:
    """Prints what holds; 1 if a property does not, or does not notice its mutant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="properties with this in their name")
    options = parser.parse_args()
    wanted = [each for each in PROPERTIES if options.only in each.name]
    found = proven(SOURCES, wanted)
    failed = 0
    for each in wanted:
        outcome, mutant = found[each.function], noticed(each)
        is_good = outcome.said == "holds" and mutant.said == "broken"
        failed += not is_good
        print(
            f"{'ok    ' if is_good else 'FAILED'} {each.name:56} {outcome.said}: "
            f"{outcome.paths} paths, {outcome.seconds:.1f} s; "
            f"without its rule {mutant.said}, {mutant.seconds:.1f} s",
            flush=True,
        )
    print(f"{len(wanted) - failed} of {len(wanted)} properties hold and notice a broken rule")
    return 1 if failed or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
