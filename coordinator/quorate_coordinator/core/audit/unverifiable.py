"""Images with which a client's job gave one provider two results (PROTOCOL §5 Demotion).

For 30 days no job of that client with that image is verified: an order that does not accept that is
refused, and no provider is faulted over one.
"""

from quorate_coordinator.core.model.accusations import UnverifiableImage
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.messages.job_spec import image_digest
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import Address, Hash32, UnixSeconds
from quorate_protocol.values import replace

IMAGES_MAX = 64  # of one client; the oldest goes first


def until(context: StepContext, submission: Submission) -> UnixSeconds:
    """Returns until when the order's image cannot be verified for its client; 0 if it can."""
    client, image = _key(submission)
    for item in context.state.unverifiable.get(client) or ():
        if item.image == image and context.at < item.until:
            return item.until
    return UnixSeconds(0)


def check(context: StepContext, submission: Submission) -> None:
    """Raises Refused if the order wants verification and its image cannot be verified."""
    end = until(context, submission)
    if end and not submission.order.message.accept_unverified:
        hours = -(-(end - context.at) // 3600)
        raise Refused(
            Code.UNSUPPORTED,
            f"order: this image gave one provider two results; for {hours} h your jobs with it "
            "need acceptUnverified; or use another image",
        )


def note(context: StepContext, job: Job) -> None:
    """Records that a job of this client with this image gave two results, and keeps the faults
    over such jobs out of all cases. They still count, so that nobody gets two over one client.
    """
    client, image = _key(job.submission)
    ends = UnixSeconds(context.at + context.rules.limits.unverifiable_for)
    kept = [
        item
        for item in context.state.unverifiable.get(client) or ()
        if item.image != image and context.at < item.until
    ]
    found = (*kept, UnverifiableImage(image, ends))[-IMAGES_MAX:]
    context.state.unverifiable[client] = found
    for owner, faults in list(context.state.faults.items()):
        if any((item.client, item.image) == (client, image) for item in faults):
            context.state.faults[owner] = tuple(
                replace(item, is_in_no_case=True)
                if (item.client, item.image) == (client, image)
                else item
                for item in faults
            )


def _key(submission: Submission) -> tuple[Address, Hash32]:
    return submission.order.message.client, image_digest(submission.spec.image)
