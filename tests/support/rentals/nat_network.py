"""A home network behind a router: two network namespaces, of which the inner one is masqueraded."""

import os
import subprocess
from dataclasses import dataclass, field
from types import TracebackType

from support.requirements import absent


@dataclass
class NatNetwork:
    """`gateway` is this machine's address, `inner` that of the machine at home. All of the home
    network has one address outside: `router`.
    """

    gateway: str = field(init=False)
    router: str = field(init=False)
    inner: str = field(init=False)

    def __post_init__(self) -> None:
        self._number = os.getpid() % 120  # of networks that are for tests of networks (RFC 2544)
        net = 2 * self._number
        self.gateway, self.router = f"198.18.{net}.1", f"198.18.{net}.2"
        self._door, self.inner = f"198.18.{net + 1}.1", f"198.18.{net + 1}.2"
        self._spaces = f"qr{self._number}", f"qh{self._number}"
        self._links = f"qo{self._number}", f"qi{self._number}"

    def __enter__(self) -> "NatNetwork":
        (router, home), (outside, inside) = self._spaces, self._links
        try:
            for space in self._spaces:
                _run("ip", "netns", "add", space)
                _run("ip", "-n", space, "link", "set", "lo", "up")
            self._link(outside, (), self.gateway, router, self.router)
            self._link(inside, ("-n", router), self._door, home, self.inner)
            _run("ip", "-n", home, "route", "add", "default", "via", self._door)
            # A call to the inner address reaches the router, which lets none in.
            _run("ip", "route", "add", self.inner, "via", self.router)
            rules = (
                "-t nat -A POSTROUTING -o eth -j MASQUERADE",
                "-P FORWARD DROP",
                f"-A FORWARD -i {inside} -j ACCEPT",
                "-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            )
            for rule in rules:
                _run(*self.inside_router("iptables", *rule.split()))
            _run(*self.inside_router("sysctl", "-qw", "net.ipv4.ip_forward=1"))
        except subprocess.CalledProcessError as error:
            self.close()
            told = f"{' '.join(error.cmd)}: {error.stderr.decode().strip()}"
            absent("nat", f"this machine makes no such network ({told})")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """May be repeated. A program inside keeps its network until it ends."""
        commands = [["ip", "link", "del", self._links[0]]]
        commands += [["ip", "netns", "del", space] for space in self._spaces]
        for command in commands:
            subprocess.run(command, capture_output=True, check=False)

    def inside_router(self, *words: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self._spaces[0]}", *words]

    def at_home(self, *words: str) -> list[str]:
        """The words that run a program behind the router. As `ip netns exec`, but it keeps the
        machine's mounts, in which the container engine looks for those of a lease.
        """
        return ["nsenter", f"--net=/run/netns/{self._spaces[1]}", *words]

    def _link(
        self, name: str, space: tuple[str, ...], address: str, other_space: str, other: str
    ) -> None:
        peer = ("peer", "name", "eth", "netns", other_space)
        _run("ip", *space, "link", "add", name, "type", "veth", *peer)
        ends = (space, name, address), (("-n", other_space), "eth", other)
        for place, device, own in ends:
            _run("ip", *place, "addr", "add", f"{own}/24", "dev", device)
            _run("ip", *place, "link", "set", device, "up")


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True, check=True)
