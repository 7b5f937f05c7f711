"""Watches which leases run at one time on this machine (I2): one run slot must run one lease."""

import asyncio
from itertools import combinations

from docker import APIClient

from quorate_devnet.market.config import DevnetConfig, ExecutorChoice
from quorate_node.executors.base.hardened_profile import LABEL_OWNER
from quorate_node.executors.docker.docker_executor import PREFIX
from quorate_node.executors.docker.engine_connection import connect
from quorate_node.executors.docker.lease_dirs import HOLD_SUFFIX
from quorate_node.executors.sandbox.supervised_leases import lease_state
from quorate_protocol.messages.ports import TaskState

LOOK_SECONDS = 0.3


class Slots:
    """Collects pairs of leases that one run slot ran at one time.

    One lease of a pair may have lapsed. If both are paid, it is a violation.
    """

    def __init__(self, config: DevnetConfig, executor: ExecutorChoice) -> None:
        self._config, self._executor = config, executor
        self.looks = 0  # number of readings in which anything ran
        self.pairs: set[tuple[str, str]] = set()

    async def watch(self) -> None:
        """Reads the running leases until cancelled."""
        api = connect() if self._executor.is_engine else None
        try:
            while True:
                running = await asyncio.to_thread(self._running, api)
                self.looks += any(running.values())
                for index, leases in running.items():
                    if len(leases) > self._config.slots_of(index):
                        self.pairs.update(combinations(sorted(leases), 2))
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            if api is not None:
                api.close()

    def _running(self, api: APIClient | None) -> dict[int, list[str]]:
        indices = range(self._config.providers)
        if api is None:
            homes = {
                index: self._config.provider_home(index) / self._executor.value for index in indices
            }
            kept = {
                index: list(home.iterdir()) if home.is_dir() else []
                for index, home in homes.items()
            }
            return {
                index: [path.name for path in paths if lease_state(path) is TaskState.RUNNING]
                for index, paths in kept.items()
            }
        found: dict[int, list[str]] = {index: [] for index in indices}
        owners = {self._config.owner(index): index for index in indices}
        for item in api.containers(filters={"status": "running", "label": LABEL_OWNER}):
            owner, name = item["Labels"].get(LABEL_OWNER), item["Names"][0].removeprefix("/")
            if owner in owners and not name.endswith(HOLD_SUFFIX):
                found[owners[owner]].append(name.removeprefix(PREFIX))
        return found
