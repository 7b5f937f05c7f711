"""The flags of a rental's network and secrets."""

import os
from dataclasses import replace
from typing import Annotated

from quorate.cli.job_flags import JobFlags
from quorate.job.job import Job
from quorate.rentals.secrets import read_secrets
from quorate_runtime.process.settings_flags import Option

SECRETS = ("secret", "registry_login", "hub_token")
NETWORK = ("egress", *SECRETS)


class NetworkFlags(JobFlags, frozen=True):
    """Those of `quorate run`, and these of rentals alone."""

    egress: Annotated[
        list[str] | None,
        Option("Host that it may reach: a name, *.name, or * for every public one. Repeatable."),
    ] = None
    secret: Annotated[
        list[str] | None,
        Option(
            "NAME=FILE for /run/secrets/NAME, or NAME=env:VARIABLE for a variable of your shells. "
            "Repeatable."
        ),
    ] = None
    registry_login: Annotated[
        str, Option("HOST=USER:FILE or HOST=USER:env:VARIABLE, for a private image.")
    ] = ""
    hub_token: Annotated[str, Option("FILE or env:VARIABLE, for private inputs hf://.")] = ""


def with_network(job: Job, flags: NetworkFlags) -> Job:
    """Reads the secrets, under a new key for each order. Raises UsageError."""
    secrets = read_secrets(flags.secret or (), flags.registry_login, flags.hub_token, os.environ)
    return replace(job, egress=tuple(flags.egress or ()), secrets=secrets)
