"""Everything the client raises: one root, one class per exit code.

`Refused` and `Unavailable` of the rules never leave the client as they are: `translated` turns
them into these.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from quorate.exit_codes import ExitCode
from quorate_protocol.refusals import MEANINGS, Code, Refused, Unavailable

NEXT = {
    Code.OVER_ALLOCATION.value: "`quorate deposit AMOUNT`, or a smaller budget",
    Code.EXPIRED.value: (
        "if it was made just now, set this machine's clock: timedatectl set-ntp true"
    ),
    Code.TOO_FEW_OWNERS.value: (
        "`quorate classes` shows who owns what; name one as host_class "
        "(--host-class), or accept_unverified"
    ),
    Code.NO_OFFER.value: "`quorate offers` shows what there is",
}
"""Command to type, for refusals whose sentence names none."""


class QuorateError(Exception):
    """Root of all errors of the client. `exit_code` is what a command ends with."""

    exit_code = ExitCode.BUG


class UsageError(QuorateError):
    """What was asked makes no sense; nothing was sent. The message names the field and the
    remedy.
    """

    exit_code = ExitCode.USAGE


class RefusedError(QuorateError):
    """Coordinator, provider or chain refused. `code` is a value of
    `quorate_protocol.refusals.Code`.
    """

    exit_code = ExitCode.REFUSED

    def __init__(self, code: str, sentence: str, detail: str = "", remedy: str = "") -> None:
        """`remedy`: where the command of `NEXT` is not the one that helps."""
        following = remedy or NEXT.get(code, "")
        super().__init__(
            f"{sentence}{' ' + detail if detail else ''} "
            f"({code}){'. Next: ' + following if following else ''}"
        )
        self.code = code
        self.detail = detail


class UnavailableError(QuorateError):
    """The other side cannot be reached or took too long; trying again later may help."""

    exit_code = ExitCode.UNAVAILABLE


class EvidenceError(QuorateError):
    """Somebody's claim does not verify: a signature, digest, charge or output. The message names
    which.
    """

    exit_code = ExitCode.INVALID_EVIDENCE


class NotVerifiedError(QuorateError):
    """The job ended, but no result was accepted."""

    exit_code = ExitCode.NOT_VERIFIED


class ProfileError(QuorateError):
    """No profile, a damaged one, or a wrong passphrase."""

    exit_code = ExitCode.NO_PROFILE


class CancelledError(QuorateError):
    """The user said no, or stopped the run before it had a result."""

    exit_code = ExitCode.CANCELLED


def from_refused(refused: Refused) -> RefusedError:
    """The client's form of a refusal by the rules."""
    return RefusedError(refused.code.value, MEANINGS[refused.code].sentence, refused.detail)


def from_answer(status: int, tree: object) -> QuorateError:
    """Error of an HTTP answer whose body is `{code, sentence, detail}`; other bodies count as
    the world failing.
    """
    if isinstance(tree, dict) and isinstance(tree.get("code"), str) and tree["code"] in set(Code):
        return from_refused(Refused(Code(tree["code"]), _detail(tree)))
    if isinstance(tree, dict) and tree.get("code") == "unavailable":
        return UnavailableError(_detail(tree) or "the coordinator is busy; try again later")
    return UnavailableError(f"the coordinator answered {status} without a reason; try again later")


def _detail(tree: dict[str, object]) -> str:
    """A stranger's sentence on one line, in letters that can be written."""
    return " ".join(
        str(tree.get("detail", ""))[:2000].encode(errors="backslashreplace").decode().split()
    )


@contextmanager
def translated() -> Iterator[None]:
    """Turns errors of the rules into the client's within a block."""
    try:
        yield
    except Refused as refused:
        raise from_refused(refused) from refused
    except Unavailable as away:
        raise UnavailableError(str(away)) from away
