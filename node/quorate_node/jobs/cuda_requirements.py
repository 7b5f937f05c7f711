"""What images ask of the GPU driver, and whether this machine's driver is new enough."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from quorate_node.core import cuda_versions
from quorate_node.core.terms import GpuDriver
from quorate_protocol.refusals import Code, Refused

IMAGES_MAX = 1024


def image_env(words: Iterable[str]) -> dict[str, str]:
    return dict(item.partition("=")[::2] for item in words if "=" in item[1:])


class CudaRequirements:
    """Requirements of the registry images read last, so that a job with a too new image is declined
    early. The loop reads and the fetches' threads write.
    """

    def __init__(self, driver: GpuDriver) -> None:
        self._driver = driver
        self._known: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> str:
        with self._lock:
            return self._known.get(name, "")

    def note(self, name: str, env: Mapping[str, str], needs_gpu: bool) -> None:
        """With `needs_gpu`, refuses the image as `check` does."""
        requirement = cuda_versions.requirement_of(env)
        with self._lock:
            self._known[name] = requirement
            self._known.move_to_end(name)
            while len(self._known) > IMAGES_MAX:
                self._known.popitem(last=False)
        if needs_gpu:
            self.check(env)

    def check(self, env: Mapping[str, str]) -> None:
        """Raises Refused(UNSUPPORTED) with both versions if the driver is too old for the image."""
        problem = cuda_versions.problem(cuda_versions.requirement_of(env), self._driver)
        if problem:
            raise Refused(Code.UNSUPPORTED, problem)
