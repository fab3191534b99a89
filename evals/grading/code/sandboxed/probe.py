"""Shows that a sandbox works: prints "ready" if the world outside is out of reach."""

import os
import socket
import sys

import limits  # type: ignore[import-not-found]

limits.apply()
if os.geteuid() == 0 or os.path.exists("/proc/1") or os.path.exists("/home") or os.path.exists("/etc"):
    sys.exit("the sandbox has more than it should")
try:
    socket.socket(socket.AF_INET)
except OSError:
    print("ready")
else:
    sys.exit("the sandbox has a network")
