"""A Prometheus server that scrapes one program every second, to evaluate expressions on it."""

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quorate_devnet.chain.free_port import free_port

START_SECONDS = 30.0
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: quorate-coordinator
    static_configs: [{{targets: ["{target}"]}}]
"""


class PrometheusServer:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the series of an expression. Fails if the server cannot evaluate it."""
        words = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{words}", timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def finds(self, expression: str) -> bool:
        """Whether an expression has series. None has any from a scrape that came too late, as on a
        busy machine, until the next one.
        """
        limit = time.monotonic() + START_SECONDS
        while not (found := self.query(expression)) and time.monotonic() < limit:
            time.sleep(0.2)
        return bool(found)

    def wait_for_scrapes(self, count: int) -> None:
        """Waits until so many scrapes have succeeded."""
        limit = time.monotonic() + START_SECONDS
        expression = f"sum(count_over_time(up[1m])) >= {count} and sum(up) == 1"
        while not self.query(expression):
            assert time.monotonic() < limit, "no scrape succeeded"
            time.sleep(0.2)

    def wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        """Waits until the server answers."""
        limit = time.monotonic() + START_SECONDS
        while True:
            assert process.poll() is None and time.monotonic() < limit, "prometheus does not answer"
            try:
                self.query("up")
            except OSError:
                time.sleep(0.1)  # not re-raised: it is not up yet, and the loop is bounded
            else:
                return


@contextmanager
def prometheus_server(folder: Path, target: str, rules: Path) -> Iterator[PrometheusServer]:
    """Runs the program `prometheus` until the context ends."""
    config, port = folder / "prometheus.yml", free_port("127.0.0.1")
    config.write_text(CONFIG.format(rules=rules, target=target))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
        try:
            server = PrometheusServer(f"http://127.0.0.1:{port}")
            server.wait_until_ready(process)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=60)
