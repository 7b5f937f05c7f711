"""Images with which a client's job gave one provider two results (PROTOCOL §5 Demotion).

For 30 days an order of that client with that image must accept to be unverified, and no provider is
faulted over one.
"""

from quorate_coordinator.core.model.accusations import UnverifiableImage
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.messages.job_spec import JobSpec, image_digest
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, UnixSeconds
from quorate_protocol.values import replace

IMAGES_MAX = 64  # of one client; the oldest goes first
Key = tuple[Address, Hash32]  # a client, and the digest of an image


def until(context: StepContext, key: Key) -> UnixSeconds:
    """0 if the client's jobs with the image can be verified."""
    client, image = key
    for item in context.state.unverifiable.get(client) or ():
        if item.image == image and context.at < item.until:
            return item.until
    return UnixSeconds(0)


def refusal(context: StepContext, client: Address, spec: JobSpec) -> Refused | None:
    """None if a client's job is not refused because of its image."""
    end = until(context, (client, image_digest(spec.image)))
    if not end:
        return None
    hours = -(-(end - context.at) // 3600)
    return Refused(
        Code.UNSUPPORTED,
        f"order: this image gave one provider two results; for {hours} h your jobs with it "
        "need verify: unverified; or use another image",
    )


def note(context: StepContext, job: Job) -> None:
    """Such faults are in no case. They still count, so that nobody gets two over one client."""
    client, image = job.order.client, image_digest(job.submission.spec.image)
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
