"""Two hosts on one machine: network namespaces with names of their own, and a link."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.launch.runs import ENVIRONMENT, PROGRAM, ROOT

ADDRESSES = ("10.77.0.1", "10.77.0.2")
_HOSTS_FILE = Path("/etc/netns")


def call(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, whether it succeeds or not."""
    return subprocess.run(words, capture_output=True, text=True, check=False)


def must(*words: str) -> None:
    """Runs a command that must succeed."""
    done = call(*words)
    assert done.returncode == 0, f"{words}: {done.stderr}"


def why_not() -> str | None:
    """Says why this machine has no network namespaces, or None if it has."""
    for program in ("ip", "tc", "unshare"):
        if shutil.which(program) is None:
            return f"no program {program!r}: Debian's packages iproute2 and util-linux have it"
    name = f"jaxgraph-try-{os.getpid()}"
    made = call("ip", "netns", "add", name)
    call("ip", "netns", "del", name)
    return None if made.returncode == 0 else f"no network namespaces here: {made.stderr.strip()}"


@dataclass(frozen=True)
class TwoHosts:
    """Two hosts.

    Attributes:
      names: their names.
      links: the network device of each.
    """

    names: tuple[str, str]
    links: tuple[str, str]

    def start(self, host: int, arguments: list[str], errors: IO[str]) -> subprocess.Popen[str]:
        """Starts `jaxgraph` on a host."""
        inside = ["ip", "netns", "exec", self.names[host], "unshare", "--uts"]
        named = ["sh", "-c", f'hostname {self.names[host]} && exec "$@"', "sh"]
        return subprocess.Popen(
            [*inside, *named, *PROGRAM, *arguments],
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
        )

    def slow_down(self) -> str:
        """Slows the link down in both directions, and says how."""
        ways = {
            "a delay of 5 ms": "netem delay 5ms",
            "1 Mbit/s": "tbf rate 1mbit burst 16kb latency 1s",
        }
        for way, discipline in ways.items():
            made = [self._queue(host, discipline) for host in (0, 1)]
            if all(done.returncode == 0 for done in made):
                return way
        raise AssertionError("this kernel slows no link down")

    def cut(self) -> None:
        """Cuts the link: packets are lost, and no connection is closed."""
        must("ip", "-n", self.names[0], "link", "set", self.links[0], "down")

    def mend(self) -> None:
        """Connects the hosts again."""
        must("ip", "-n", self.names[0], "link", "set", self.links[0], "up")

    def _queue(self, host: int, discipline: str) -> subprocess.CompletedProcess[str]:
        where = ["tc", "-n", self.names[host], "qdisc", "replace", "dev", self.links[host], "root"]
        return call(*where, *discipline.split())


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Makes two hosts, and removes them at the end."""
    unique = os.getpid()
    hosts = TwoHosts(
        (f"jaxgraph-a-{unique}", f"jaxgraph-b-{unique}"), (f"jga{unique}", f"jgb{unique}")
    )
    files = [_HOSTS_FILE / name for name in hosts.names]
    lines = [f"{address} {name}\n" for address, name in zip(ADDRESSES, hosts.names, strict=True)]
    try:
        for name in hosts.names:
            must("ip", "netns", "add", name)
        one, other = hosts.links
        must("ip", "link", "add", one, "type", "veth", "peer", "name", other)
        for name, link, address, folder in zip(
            hosts.names, hosts.links, ADDRESSES, files, strict=True
        ):
            must("ip", "link", "set", link, "netns", name)
            must("ip", "-n", name, "addr", "add", f"{address}/24", "dev", link)
            for device in (link, "lo"):
                must("ip", "-n", name, "link", "set", device, "up")
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        yield hosts
    finally:
        for name, folder in zip(hosts.names, files, strict=True):
            call("ip", "netns", "del", name)
            shutil.rmtree(folder, ignore_errors=True)
