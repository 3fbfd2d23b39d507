"""The filter of system calls, by an interpreter of classic BPF that is written from the kernel's documentation."""

import errno
import re
import struct
from pathlib import Path

import pytest

from ampedu.grading import syscalls

ALLOW, KILL, DENY = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM
# seccomp(2): struct seccomp_data { int nr; __u32 arch; __u64 instruction_pointer; __u64 args[6]; }
X86, ARM = 0xC000003E, 0xC00000B7


def run(program, number, architecture, first=0):
    """What the kernel does with one call: BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K and BPF_RET|K are enough."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, first, *[0] * 5)
    lines = [struct.unpack_from("=HBBI", program, 8 * i) for i in range(len(program) // 8)]
    at = register = 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        if code == 0x20:
            register = struct.unpack_from("=I", data, value)[0]
        elif code == 0x06:
            return value
        else:
            hit = {0x15: register == value, 0x35: register >= value}[code]
            at += yes if hit else no


@pytest.mark.parametrize(("machine", "architecture", "column"), [("x86_64", X86, 0), ("aarch64", ARM, 1)])
def test_exactly_what_is_listed_is_denied(machine, architecture, column):
    program = syscalls.program(machine)
    listed = {numbers[column] for numbers in syscalls.DENIED.values()}
    assert {number for number in range(1000) if run(program, number, architecture) == DENY} == listed
    others = set(range(1000)) - listed
    assert {number for number in range(1000) if run(program, number, architecture) == ALLOW} == others
    assert run(program, syscalls.X32 + 1, architecture) == DENY
    prlimit = syscalls.PRLIMIT[column]
    assert [run(program, prlimit, architecture, pid) for pid in (0, 1, 2**32)] == [ALLOW, DENY, ALLOW]
    assert run(program, 1, 0x40000003) == KILL  # 32-bit x86: other numbers


def test_a_machine_that_is_not_listed_has_no_filter():
    assert syscalls.program("riscv64") is None


@pytest.mark.parametrize(
    ("header", "column"), [("x86_64-linux-gnu/asm/unistd_64.h", 0), ("asm-generic/unistd.h", 1)], ids=["x86", "arm"]
)
def test_numbers_are_those_of_the_kernel_headers(header, column):
    path = Path("/usr/include", header)
    if not path.exists():
        pytest.skip("the kernel's headers are not installed here: apt install linux-libc-dev")
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", path.read_text())}
    for name, numbers in (*syscalls.DENIED.items(), ("prlimit64", syscalls.PRLIMIT)):
        assert numbers[column] == known.get(name, numbers[column]), name


def test_what_python_and_torch_need_is_not_listed():
    assert not {"clone", "execve", "futex", "mmap", "prlimit64", "sched_getaffinity"} & set(syscalls.DENIED)
