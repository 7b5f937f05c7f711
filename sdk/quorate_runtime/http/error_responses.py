"""Turns errors of HTTP handlers into answers: typed, of limited size and without a stack trace.

Coordinator and node share it.
"""

import json
import logging
import math
from collections.abc import Awaitable, Callable

from aiohttp import web

from quorate_protocol.refusals import MEANINGS, Code, Refused, Unavailable
from quorate_runtime.actor.journal_port import JournalFailed

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STARTED = web.RequestKey("started", bool)
OF_STATUS: dict[int, Code] = {
    404: Code.UNKNOWN,
    405: Code.UNSUPPORTED,
    413: Code.OVERSIZE,
    415: Code.UNSUPPORTED,
    503: Code.BUSY,
}
"""The code of each status with which the HTTP library refuses by itself; else it is malformed."""


class Busy(Refused):
    """The refusal of a request because too many come at once. `retry_after` says after how many
    whole seconds to try again.
    """

    def __init__(self, detail: str, retry_after_seconds: float) -> None:
        super().__init__(Code.BUSY, detail)
        self.retry_after = max(1, math.ceil(retry_after_seconds))


def refusal_answer(
    code: str, sentence: str, detail: str, status: int, headers: dict[str, str] | None = None
) -> web.Response:
    """Makes the answer for a status of 400 and above. All such answers have this form."""
    tree = {"code": code, "sentence": sentence, "detail": detail[:2000]}
    return web.Response(
        status=status, text=json.dumps(tree), content_type="application/json", headers=headers
    )


def coded(code: Code, detail: str, status: int | None = None) -> web.Response:
    meaning = MEANINGS[code]
    return refusal_answer(code.value, meaning.sentence, detail, status or meaning.status)


def internal() -> web.Response:
    """Makes the answer for a bug of ours; only the log says what it was."""
    return refusal_answer(
        "internal", "The service failed; this is not your fault.", "it is in the service's log", 500
    )


@web.middleware
async def failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (Refused, Unavailable) as error:  # becomes the answer
        if request.get(STARTED):
            log.warning("%s %s was cut: %s", request.method, request.path[:200], error)
            raise ConnectionResetError("the answer had begun") from error
        return _answer_of(error)
    # The journal cannot be written: the actor ends the daemon and logs the remedy.
    except JournalFailed as error:
        log.error("%s %s has no answer: %s", request.method, request.path[:200], error)
        if request.get(STARTED):
            raise ConnectionResetError("the answer had begun") from error
        return _answer_of(Unavailable("the daemon is stopping"))
    except web.HTTPException as error:  # becomes an answer in our form
        if error.status < 400:
            raise
        return coded(OF_STATUS.get(error.status, Code.MALFORMED), error.reason, error.status)
    except ConnectionError:
        raise  # the client has disconnected
    except Exception:
        log.exception("%s %s failed", request.method, request.path[:200])
        if request.get(STARTED):
            raise ConnectionResetError("the answer had begun") from None
        return internal()


def _answer_of(error: Refused | Unavailable) -> web.Response:
    if isinstance(error, Unavailable):
        wait = {"Retry-After": str(max(1, round(error.retry_after)))}
        return refusal_answer("unavailable", "Try again later.", str(error), 503, wait)
    if isinstance(error, Busy):
        meaning = MEANINGS[Code.BUSY]
        return refusal_answer(
            error.code.value,
            meaning.sentence,
            error.detail,
            meaning.status,
            {"Retry-After": str(error.retry_after)},
        )
    return coded(error.code, error.detail)


async def mark_started(request: web.Request, _: web.StreamResponse) -> None:
    """Records that the answer has begun, so that no other one can follow. It is a signal handler
    for `on_response_prepare`.
    """
    request[STARTED] = True
