"""All errors of the client: one root class, and one class per exit code.

`translated` turns `Refused` and `Unavailable` of the protocol into these, so callers see only
these.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from quorate.base.exit_codes import ExitCode
from quorate_protocol.refusals import MEANINGS, Code, Refused, Unavailable, said

REMEDIES = {
    Code.INSUFFICIENT_FUNDS.value: "`quorate deposit AMOUNT`, or a smaller budget",
    Code.NO_VOUCHER.value: "`quorate spend` compares what you checked with what it charged",
    Code.EXPIRED.value: (
        "if it is a new order, set this machine's clock: timedatectl set-ntp true"
    ),
    Code.TOO_FEW_OWNERS.value: (
        "`quorate pools` shows the owners; name a class as pool (--pool), or add "
        "--verify unverified"
    ),
    Code.NO_OFFER.value: "`quorate offers` shows the live offers",
}
"""The next step for refusals whose sentence names none."""


class QuorateError(Exception):
    """Root of all errors of the client. `exit_code` is the command's exit code. `charged` is what a
    run cost that has no result, in micro-USD.
    """

    exit_code = ExitCode.BUG
    charged = 0


class UsageError(QuorateError):
    """The input is wrong, and nothing was sent. The message names the field and the remedy."""

    exit_code = ExitCode.USAGE


class RefusedError(QuorateError):
    """The coordinator, a provider or the chain refused. `code` is a value of
    `quorate_protocol.refusals.Code`.
    """

    exit_code = ExitCode.REFUSED

    def __init__(self, code: str, sentence: str, detail: str = "", remedy: str = "") -> None:
        """`remedy` replaces the next step of `REMEDIES`."""
        following = remedy or REMEDIES.get(code, "")
        super().__init__(
            f"{said(sentence, detail)} ({code}){'. Next: ' + following if following else ''}"
        )
        self.code = code
        self.detail = detail


class UnavailableError(QuorateError):
    """The other side cannot be reached or took too long. Trying again later may help."""

    exit_code = ExitCode.UNAVAILABLE


class EvidenceError(QuorateError):
    """A signature, digest, charge or output does not verify. The message names which."""

    exit_code = ExitCode.INVALID_EVIDENCE


class NotVerifiedError(QuorateError):
    """The job ended, but no result was accepted.

    `differences` say where two of its results differ, each with `path` and `sentence`, if the
    outputs could be compared.
    """

    exit_code = ExitCode.NOT_VERIFIED

    def __init__(self, sentence: str, differences: Sequence[object] = ()) -> None:
        super().__init__(sentence)
        self.differences = tuple(differences)


class ProgramError(QuorateError):
    """The result was accepted, and the user's own function failed or returned another type."""

    exit_code = ExitCode.JOB_FAILED


class ProfileError(QuorateError):
    """The profile is missing or damaged, or its passphrase is wrong."""

    exit_code = ExitCode.NO_PROFILE


class CancelledError(QuorateError):
    """The user declined, or stopped the run before it had a result."""

    exit_code = ExitCode.CANCELLED


def from_refused(refused: Refused) -> RefusedError:
    """Turns a protocol refusal into the client's error."""
    return RefusedError(refused.code.value, MEANINGS[refused.code].sentence, refused.detail)


def from_answer(status: int, tree: object) -> QuorateError:
    """Turns an HTTP answer with body `{code, sentence, detail}` into an error. Other bodies count
    as unavailable.
    """
    if isinstance(tree, dict) and isinstance(tree.get("code"), str) and tree["code"] in set(Code):
        return from_refused(Refused(Code(tree["code"]), _detail(tree)))
    if isinstance(tree, dict) and tree.get("code") == "unavailable":
        return UnavailableError(_detail(tree) or "the coordinator is busy; try again later")
    return UnavailableError(f"the coordinator answered {status} without a reason; try again later")


def _detail(tree: dict[str, object]) -> str:
    """Puts a stranger's text on one line of at most 2,000 characters."""
    return " ".join(
        str(tree.get("detail", ""))[:2000].encode(errors="backslashreplace").decode().split()
    )


def is_full_disk(error: BaseException | None) -> bool:
    """Returns whether a full disk caused the error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


@contextmanager
def translated() -> Iterator[None]:
    """Turns protocol errors into the client's errors within a block."""
    try:
        yield
    except Refused as refused:
        raise from_refused(refused) from refused
    except Unavailable as away:
        raise UnavailableError(str(away)) from away
