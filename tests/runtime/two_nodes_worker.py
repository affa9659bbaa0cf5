"""Run under legate, on two ranks that take themselves to be on two hosts: measures the machine."""

from __future__ import annotations

import socket
import sys

from flexlegion.cli.main import main
from flexlegion.machine.running import running_machine

if __name__ == "__main__":
    host = f"host{running_machine().rank}"
    socket.gethostname = lambda: host
    sys.exit(main(["machine", "measure", "--out", sys.argv[1], "--nodes", sys.argv[2]]))
