"""`quorate.verify`: checks a receipt file, and compares it with what its reader trusts."""

from pathlib import Path

from quorate.base.errors import UsageError
from quorate_attestation.fits import are_pools_fitting
from quorate_contracts.deploy import Deployment
from quorate_protocol.codec import canonical
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import SPEC_BYTES_MAX
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.receipt import RECEIPT_BYTES_MAX, Check, Receipt, Report
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.receipts import receipt_checks, receipt_pins
from quorate_protocol.rules.receipts.receipt_pins import Pins
from quorate_protocol.units import Address, Round
from quorate_runtime.keys.bls import verify_round
from quorate_runtime.keys.crypto import recover


def verify(source: Path | str | bytes) -> Report:
    """Checks a receipt, given as a path or as bytes, and returns every check by name.

    `report.valid` is true if all hold. The identities in the receipt are its own word: compare them
    with `pinned`. Raises UsageError if the file cannot be read.
    """
    data = source if isinstance(source, bytes) else read(Path(source))
    return receipt_checks.verify(data, recover, check_round)


def check_round(key: bytes, number: int, signature: bytes) -> bool:
    return verify_round(key, Round(number), signature)


def body_of(data: bytes) -> Receipt | None:
    """Returns the body of a receipt file; None if the file is no receipt."""
    try:
        tree = canonical.parse(data, RECEIPT_BYTES_MAX)
        if not isinstance(tree, dict) or "body" not in tree:
            return None
        made: Receipt = canonical.from_json(Receipt, tree["body"])
    except Refused:
        return None  # not re-raised: the caller says what a receipt is
    return made


def pinned(
    body: Receipt, deployment: Deployment, coordinator: Address | None = None
) -> tuple[Check, ...]:
    """Compares a receipt with a deployment that its reader trusts, and with a coordinator's account
    if there is one.
    """
    timing = receipt_pins.timing_of(deployment.beacon_info(), deployment.constants())
    pins = Pins(deployment.domain(), deployment.beacon_key, timing)
    return (
        *receipt_pins.checks(body, pins),
        Check(
            "pin:coordinator",
            coordinator in (None, body.order.message.coordinator),
            f"the coordinator is 0x{body.order.message.coordinator.hex()}",
        ),
    )


def of_spec(body: Receipt, data: bytes) -> tuple[Check, ...]:
    is_ordered = sha256(data) == body.order.message.spec_hash
    if not is_ordered:
        return (Check("spec", False, "the file is not the spec that the order names"),)
    try:
        spec = job_spec.decode(data)
    except Refused as refused:
        return (Check("spec", False, refused.detail),)
    order = body.order.message
    good = (
        body.image == job_spec.image_digest(spec.image)
        and body.profile == spec.profile().digest()
        and order.max_duration == spec.paid_seconds()
        and order.input_root == job_spec.input_root(spec)
        and body.compare == spec.compare
        and are_pools_fitting(spec, body.pools)
    )
    text = "image, profile, inputs, duration, comparing and pools are the spec's"
    return (Check("spec", good, text),)


def read(path: Path, bytes_max: int = RECEIPT_BYTES_MAX) -> bytes:
    """Returns a file's bytes, at most one more than `bytes_max`. Raises UsageError."""
    try:
        with path.open("rb") as file:
            return file.read(bytes_max + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def read_spec(path: Path) -> bytes:
    """Returns the bytes of a spec document. Raises UsageError."""
    return read(path, SPEC_BYTES_MAX)
