"""A daemon of ssh on this machine with its own keys, for tests that run as root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def missing() -> str:
    """Return the reason why there can be no daemon here; empty if there can."""
    absent = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    absent += [] if Path(_SSHD).exists() else ["sshd"]
    if absent:
        return f"no {', '.join(absent)}: install openssh-server and openssh-client"
    return "" if os.geteuid() == 0 else "sshd needs root here"


@contextlib.contextmanager
def ssh_daemon(folder: Path) -> Iterator[Path]:
    """Run a daemon with keys in a new folder. Yield an ssh configuration in which n0, n1 and n2 are this machine.

    `nowhere` refuses connections.
    """
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "banner").write_text("Welcome! {}\n")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"PidFile {folder}/pid\nBanner {folder}/banner\nPasswordAuthentication no\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    daemon = subprocess.Popen([_SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL)
    user = pwd.getpwuid(os.geteuid()).pw_name
    config = folder / "config"
    config.write_text(
        f"Host n0 n1 n2\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {folder}/user\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known\n  StrictHostKeyChecking accept-new\n"
        "Host nowhere\n  HostName 127.0.0.1\n  Port 1\n"
    )
    deadline = time.monotonic() + 60
    while subprocess.run(["ssh", "-F", str(config), "n0", "true"], check=False, capture_output=True).returncode:
        assert daemon.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield config
    daemon.terminate()
    daemon.wait()
