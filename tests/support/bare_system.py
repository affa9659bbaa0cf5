"""Debian systems with nothing installed, in folders, for what a new user does first.

debootstrap makes the system. What its user does runs in namespaces of its own, by chroot, on a
layer above that takes all changes, so that one system serves several users. No mount outlives its
shell.

The settings by which apt and pip reach their packages are carried into it from this machine, and
folders of packages that they name are there, too, for reading.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

RELEASE = "bookworm"
# What every user has who has got the sources.
INCLUDED = ["ca-certificates", "git"]
SETTINGS = [
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/debian.sources",
    "/etc/apt/apt.conf.d",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/resolv.conf",
    "/etc/ssl/certs",
    "/etc/xdg/pip",
    "/usr/local/share/ca-certificates",
]
VARIABLES = re.compile(r"PIP_\w+|SSL_CERT_\w+|\w+_CA_BUNDLE|(https?|no|HTTPS?|NO)_(proxy|PROXY)")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
END = "end-of-a-line-in-the-bare-system"


def why_not() -> str:
    """Why no such system can be made here; nothing if one can."""
    if os.geteuid() != 0:
        return "a system in a folder needs root"
    for command in ("debootstrap", "unshare", "setpriv", "chroot"):
        if shutil.which(command) is None:
            return f"there is no {command}"
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else "mounts of one's own are not allowed here"


def make(folder: Path) -> None:
    """Make the system, unless a former call has."""
    done = folder.with_name(folder.name + ".done")
    if done.exists():
        return
    if folder.exists():
        shutil.rmtree(folder)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(INCLUDED)}", RELEASE]
    with folder.with_name(folder.name + ".log").open("w") as log:
        subprocess.run([*command, str(folder)], check=True, stdout=log, stderr=log)
    carry_settings(folder)
    done.touch()


def carry_settings(folder: Path) -> None:
    """Copy what apt and pip are told on this machine."""
    pip = Path.home() / ".config" / "pip"
    for name, into in [*((name, name) for name in SETTINGS), (str(pip), "/root/.config/pip")]:
        source, target = Path(name), folder / into[1:]
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)
        elif source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    if Path("/etc/apt/sources.list.d/debian.sources").is_file():
        (folder / "etc/apt/sources.list").write_text("")  # debootstrap's own, which repeats it


def package_folders() -> list[Path]:
    """Folders on this machine that pip's settings name."""
    texts = [value for name, value in os.environ.items() if name.startswith("PIP_")]
    for place in ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.config/pip/pip.conf"):
        file = Path(place).expanduser()
        texts += [file.read_text()] if file.is_file() else []
    named = {Path(name) for text in texts for name in re.findall(r"(?<![\w:/])/[\w./-]+", text)}
    # What an index names lies beside it.
    named |= {
        Path(name).parent for text in texts for name in re.findall(r"file://(/[\w./-]+)", text)
    }
    return sorted(folder for folder in named if folder.is_dir())


@dataclass(frozen=True)
class Layer:
    """A system and what has been changed in it: layers, of which the last is written."""

    lower: tuple[Path, ...]
    own: Path

    def above(self, own: Path) -> Layer:
        """A layer for another user of what this one has become."""
        return Layer((*self.lower, self.own / "changes"), own)

    def mounts(self) -> str:
        """The commands of a shell that put the system together, in a namespace of its own."""
        for part in ("changes", "work", "root"):
            (self.own / part).mkdir(parents=True, exist_ok=True)
        root = self.own / "root"
        lower = ":".join(map(str, reversed(self.lower)))
        options = f"lowerdir={lower},upperdir={self.own / 'changes'},workdir={self.own / 'work'}"
        lines = [
            "set -e",
            f"mount -t overlay overlay -o {options} {root}",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
            f"mount --bind /sys {root}/sys",
        ]
        for folder in package_folders():
            lines += [f"mkdir -p {root}{folder}", f"mount --bind -o ro {folder} {root}{folder}"]
        return "\n".join(lines)

    def put(self, source: Path, into: str) -> None:
        """Lay a file or a folder of this machine into the system, where nobody is in it."""
        target = self.own / "changes" / into.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copyfile(source, target)


class Shell:
    """A shell in a system: what one line sets (a folder, variables) is there for the next."""

    def __init__(self, layer: Layer) -> None:
        kept = [f"{k}={v}" for k, v in os.environ.items() if VARIABLES.fullmatch(k)]
        own = ["HOME=/root", f"PATH={PATH}", "TERM=dumb", "LC_ALL=C.UTF-8", *kept]
        inside = shlex.join(
            ["chroot", str(layer.own / "root"), "env", "-i", *own, "bash", "--norc", "--noprofile"]
        )
        # Nothing goes on where this process is ended.
        apart = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"]
        apart.append("--kill-child")
        self.process = subprocess.Popen(
            [*apart, "bash", "-c", f"{layer.mounts()}\nexec {inside}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def write(self, path: str, text: str) -> None:
        """Save a file under this path of the system."""
        status, said = self.run(f"cat > {shlex.quote(path)} <<'{END}'\n{text}{END}\n")
        assert status == 0, said

    def run(self, line: str, timeout: float = 600) -> tuple[int, str]:
        """The exit status of a line (-1: it did not end in time), and what it printed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # Without a terminal, and without the shell's own input. A newline ends a here-document.
        command = f"{{ {line}\n}} {'' if '<<' in line else '< /dev/null'}\n"
        self.process.stdin.write((command + f'printf "\\n{END} %d\\n" $?\n').encode())
        self.process.stdin.flush()
        said, until = b"", time.monotonic() + timeout
        while (ended := re.search(rb"\n" + END.encode() + rb" (\d+)\n", said)) is None:
            left = until - time.monotonic()
            if left < 0 or not select.select([self.process.stdout], [], [], left)[0]:
                self.close()
                return -1, said.decode(errors="replace")
            read = os.read(self.process.stdout.fileno(), 1 << 16)
            if not read:
                return -1, said.decode(errors="replace") + "\nthe shell has ended"
            said += read
        return int(ended[1]), said[: ended.start()].decode(errors="replace")

    def close(self) -> None:
        """End it, and all that it has started."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
