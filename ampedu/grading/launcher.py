"""Run by root only: ``python -I launcher.py JSON``. Show some folders to an unprivileged user, then become that user.

bubblewrap must not be started by root: it would keep the kernel's user 0 inside the sandbox. But the user it is started
as may be unable to reach the Python of a home folder. So in a mount namespace of its own this process mounts the
folders of JSON["folders"] read-only below /mnt, gives up root, and becomes JSON["command"].
"""

import ctypes
import json
import os
import sys

CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind, flags, options=None):
    """mount(2). Raises OSError."""
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if _libc.mount(*arguments, ctypes.c_ulong(flags), None if options is None else options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {source} on {target}: {os.strerror(ctypes.get_errno())}")


def main(job: dict) -> None:
    """Do the steps above; never returns."""
    if _libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/mnt", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for source, target in job["folders"]:
        os.mkdir(target, 0o755)
        mount(source, target, None, MS_BIND)
        mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execv(job["command"][0], job["command"])


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except OSError as error:
        sys.exit(f"the sandbox could not be prepared: {error}")
