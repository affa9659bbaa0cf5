"""A command between two network namespaces of this machine, joined by a slow link.

    python tests/long/slow_network.py [--delay 1] COMMAND...

Makes the namespaces ``fl0`` (10.77.0.1) and ``fl1`` (10.77.0.2), hands packets from one to the
other after so many ms, runs the command in the first, and removes both. In the command's
environment, mpirun starts what belongs to 10.77.0.2 in the second, and SLOW_HOSTS is the hosts
file. Needs root and /dev/net/tun. (The kernel's own emulation of slow networks, netem, is a module
that many machines lack.)
"""

from __future__ import annotations

import argparse
import fcntl
import os
import selectors
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000
NAMES = ("fl0", "fl1")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
MTU = 65000  # the relay handles packets one by one, so there should be few


def ip(*words: str) -> None:
    """Run ip."""
    subprocess.run(["ip", *words], check=True)


def tunnel(name: str, address: str) -> int:
    """A TUN device in a new namespace; what is sent to it is read from the file descriptor."""
    ip("netns", "add", name)
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    ip("link", "set", name, "netns", name)
    ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
    ip("-n", name, "link", "set", name, "mtu", str(MTU), "up")
    ip("-n", name, "link", "set", "lo", "up")
    os.set_blocking(device, False)
    return device


def relay(ends: tuple[int, int], seconds: float) -> None:
    """Hand each packet over after that time, until the namespaces are removed."""
    waiting: deque[tuple[float, int, bytes]] = deque()  # until, where to, what
    selector = selectors.DefaultSelector()
    for i, end in enumerate(ends):
        selector.register(end, selectors.EVENT_READ, ends[1 - i])
    while True:
        now = time.monotonic()
        try:
            while waiting and waiting[0][0] <= now:
                _, to, packet = waiting.popleft()
                os.write(to, packet)
            for key, _ in selector.select(max(0, waiting[0][0] - now) if waiting else None):
                waiting.append((time.monotonic() + seconds, key.data, os.read(key.fd, 1 << 17)))
        except BlockingIOError:
            continue
        except OSError:
            return


def main() -> int:
    """Make the namespaces, run the command, remove them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--delay", type=float, default=1.0, metavar="MS", help="default: 1")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    try:
        first, second = (
            tunnel(name, address) for name, address in zip(NAMES, ADDRESSES, strict=True)
        )
        ends = first, second
        threading.Thread(target=relay, args=(ends, args.delay / 1e3), daemon=True).start()
        with tempfile.TemporaryDirectory() as folder:
            agent, hosts = Path(folder) / "agent", Path(folder) / "hosts"
            agent.write_text(f'#!/bin/sh\nshift\nexec ip netns exec {NAMES[1]} sh -c "$*"\n')
            agent.chmod(0o755)
            hosts.write_text("".join(f"{address} slots=1\n" for address in ADDRESSES))
            variables = {"OMPI_MCA_plm_rsh_agent": str(agent), "SLOW_HOSTS": str(hosts)}
            command = ["ip", "netns", "exec", NAMES[0], *args.command]
            return subprocess.run(command, env=os.environ | variables, check=False).returncode
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], check=False)


if __name__ == "__main__":
    sys.exit(main())
