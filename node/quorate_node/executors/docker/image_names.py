"""Names the images that this provider's jobs brought into the engine: quorate-job:OWNER-DIGEST.

So `docker images quorate-job` shows them. The engine counts names, so an image that several
providers use goes when the last of them gives it up. A label inside the image would change its id,
by which jobs are verified.
"""

import re

import docker
import docker.errors

REPOSITORY = "quorate-job"
OWNER_CHARACTERS, DIGEST_CHARACTERS = 40, 24
_OTHER_LETTERS = re.compile(r"[^A-Za-z0-9_.]+")


class ImageNames:
    """The names that one owner's daemon gives. Blocking; raises as the Docker SDK does."""

    def __init__(self, api: docker.APIClient, owner: str) -> None:
        self._api = api
        self._start = f"{REPOSITORY}:{_OTHER_LETTERS.sub('_', owner)[:OWNER_CHARACTERS]}-"

    def put(self, reference: str) -> None:
        """Names an image, which the engine has under its id `reference`."""
        digest = reference.removeprefix("sha256:")[:DIGEST_CHARACTERS]
        name, tag = f"{self._start}{digest}".split(":")
        self._api.tag(reference, name, tag)

    def all(self) -> dict[str, str]:
        """Returns all images with this owner's name: name -> id."""
        found = self._api.images(name=REPOSITORY)
        return {
            name: str(item["Id"])
            for item in found
            for name in item.get("RepoTags") or ()
            if name.startswith(self._start)
        }

    def own(self, names: object) -> list[str]:
        """Returns those of an image's names that this owner gave."""
        return [name for name in _texts(names) if name.startswith(self._start)]


def foreign_names(names: object) -> list[str]:
    """Returns those of an image's names that no provider gave: somebody else uses the image."""
    return [name for name in _texts(names) if not is_label(name)]


def is_label(name: str) -> bool:
    """Whether some provider gave this name."""
    return name.startswith((f"{REPOSITORY}:", f"{REPOSITORY}@"))


def _texts(names: object) -> list[str]:
    return [str(name) for name in names] if isinstance(names, list) else []
