"""Tests that the rules to come of docs/roadmap.md are indeed not built.

docs/trust.md lists them; update it when you build one.
"""

import json
from pathlib import Path

import pytest
from msgspec.structs import fields

import quorate_contracts
import quorate_coordinator
from quorate.base.errors import UsageError
from quorate.trust.receipt_verification import verify
from quorate_coordinator.api.handlers import OPERATIONS
from quorate_node.status.status import EarningStatus
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.messages import frames as frames_module
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.signed import CommitSet
from quorate_protocol.messages.views import PlanView, ProviderView

ROOT = Path(__file__).parents[3]
ABI = Path(quorate_contracts.__file__).parent / "abi"
PACKAGES = ("coordinator", "node", "sdk", "contracts")


def sources(*left_out: str) -> str:
    """Returns the text of every program, without some files."""
    found = (
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name not in left_out
    )
    return "\n".join(path.read_text(encoding="utf-8") for path in found)


def entries(kind: str) -> set[str]:
    """Returns functions or events of all contracts, in lower case."""
    trees = [
        json.loads((ABI / f"{name}.json").read_text())["abi"]
        for name in ("Stakes", "Escrow", "Jobs", "Court", "Faults")
    ]
    return {item["name"].lower() for tree in trees for item in tree if item["type"] == kind}


def test_a_gap_in_receipts_costs_no_bond() -> None:
    tree = json.loads((ABI / "Faults.json").read_text())["abi"]
    shown = {
        item["name"]
        for item in tree
        if item["type"] == "function" and item["stateMutability"] == "nonpayable"
    }
    assert shown == {"equivocation", "two_acks"}


@pytest.mark.rule("4.13", "5.53", "5.94", "5.98")
@pytest.mark.parametrize("wanted", ["commit", "canary", "delegate", "audit"])
def test_planned_messages_do_not_exist(wanted: str) -> None:
    """These are a commit on chain, a canary, a delegate of a reveal, and an audit of another
    coordinator's job.
    """
    frames = {name.lower() for name in vars(frames_module) if name.endswith("Sent")} - {
        "commitsent",
        "commitsetsent",
    }
    asked = entries("function") | {operation.path for operation in OPERATIONS} | frames
    assert len(asked) > 60 and not [name for name in asked if wanted in name], (
        "build it, then say so in docs/trust.md"
    )


@pytest.mark.rule("7.4", "7.32")
def test_no_coordinator_counts_anothers_log() -> None:
    """It imports and shows it. Only its own Summaries change its table of trust."""
    package = Path(quorate_coordinator.__file__).parent
    writers = [path.name for path in package.rglob("*.py") if "state.trust[" in path.read_text()]
    assert writers == ["summaries.py"]


@pytest.mark.rule("7.28")
def test_no_message_names_the_log_at_a_draw() -> None:
    assert not [field.name for field in fields(CommitSet) if "log" in field.name]


@pytest.mark.rule("3.42", "4.25")
def test_receipts_are_files_and_outputs_have_one_store() -> None:
    with pytest.raises(UsageError, match="No such file"):
        verify(document_cid(b"a receipt"))
    assert not [field.name for field in fields(JobSpec) if "output" in field.name], (
        "so a job names none of its own"
    )


@pytest.mark.rule("5.52")
def test_no_view_shows_when_held_pay_becomes_final() -> None:
    for view in (EarningStatus, PlanView, ProviderView):
        named = {field.name for field in fields(view)}
        assert not [
            name
            for name in named
            if any(word in name for word in ("until", "date", "final_at", "hold"))
        ], view.__name__
