"""System calls that a submission never needs and that could hide memory, outlive a unit, or reach the kernel's depths.

A filter in the kernel's language (classic BPF), which bubblewrap installs: these calls fail with EPERM. It is a second
wall: what the first one is made of, see confine and cleaning. Numbers are those of the kernel's tables.
"""

import errno
import os
import struct

# By name: the numbers on x86-64 (asm/unistd_64.h) and aarch64 (asm-generic/unistd.h). Hidden memory: memfd_*,
# shmget. Left behind: System V objects, POSIX queues, keys. Depths: bpf, perf, io_uring, userfaultfd, ptrace and
# its kin, modules, mounts, namespaces. Others' time: sched_setaffinity, since each sandbox has cores of its own.
DENIED = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "mount": (165, 40), "umount2": (166, 39), "unshare": (272, 97), "setns": (308, 268),
    "pivot_root": (155, 41), "chroot": (161, 51), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "open_by_handle_at": (304, 265), "process_madvise": (440, 440),
    "fsopen": (430, 430), "fsmount": (432, 432), "move_mount": (429, 429), "open_tree": (428, 428),
    "fsconfig": (431, 431), "fspick": (433, 433), "mount_setattr": (442, 442), "fanotify_init": (300, 262),
    "sched_setaffinity": (203, 122),
}  # fmt: skip
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PRLIMIT = (302, 261)  # for the caller itself only: a unit could set limits of the worker
X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_DENY = 0x00050000 | errno.EPERM


def program(machine: str | None = None) -> bytes | None:
    """The filter for a machine, by default this one; None for a machine whose numbers are not listed."""
    machine = machine or os.uname().machine
    if machine not in ARCHITECTURE:
        return None
    column = list(ARCHITECTURE).index(machine)
    lines = [
        (_LOAD, 0, 0, 4),  # seccomp_data.arch
        (_EQUAL, 1, 0, ARCHITECTURE[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # seccomp_data.nr
        (_AT_LEAST, 0, 1, X32),  # the second table of numbers that x86-64 kernels may have
        (_RETURN, 0, 0, _DENY),
    ]
    for numbers in DENIED.values():
        lines += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _DENY)]
    lines += [
        (_EQUAL, 0, 3, PRLIMIT[column]),
        (_LOAD, 0, 0, 16),  # the low half of the first argument, a process number
        (_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
