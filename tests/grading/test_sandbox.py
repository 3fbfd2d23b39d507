"""The sandbox: what a submission cannot see or do, what ends it, and that nothing of it is left for the next one."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from ampedu.exercises import data, judge, load
from ampedu.grading import confine, course, judging, selftest, stage, syscalls
from ampedu.grading import sandbox as sandbox_module
from ampedu.grading.answers import Answer
from ampedu.grading.confine import SandboxError
from ampedu.grading.sandbox import Sandbox

from .conftest import LAB, ROOT

DECODE = load("01.decode")
CASES = DECODE.cases(b"for the tests")


def probed(sandbox, body, before=""):
    """The value that a probe with this body returns; the last message if it returned none."""
    observed = sandbox.probe(f"{before}\ndef probe():\n{textwrap.indent(textwrap.dedent(body), '    ')}")
    (outcome,) = observed.outcomes or [observed.definition]
    return outcome.get("value", outcome)


def decoded(sandbox, body, **options):
    source = f"import os, signal, sys, time\ndef decode(*a):\n    {body}\n"
    return sandbox.observe(DECODE, source, "decode", CASES, **options)


def test_promises(warm, tmp_path):
    hidden = [*course.answer_keys(ROOT), tmp_path, Path.home() / ".ssh"]
    assert [row for row in selftest.rows(warm.probe(selftest.source(hidden))) if not row.ok] == []


def test_the_secret_and_this_process_are_not_in_what_can_be_seen(warm, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TESTS", "x")
    seen = probed(warm, """
        import os
        texts = [open(f"/proc/{pid}/cmdline").read() for pid in (1, os.getpid())]
        return [texts, sorted(os.environ), os.listdir("/home") if os.path.exists("/home") else []]
    """)  # fmt: skip
    assert "SECRET_OF_THE_TESTS" not in seen[1] and seen[2] == []
    assert all(text.split("\0")[-2].isdigit() for text in seen[0])  # the last argument: a descriptor's number


@pytest.mark.parametrize("module", ["ampedu.formats", "ampedu.grading.judging", "ampedu.grading.expected", "ampedu.cli",
                                    "solutions", "sources", "tests", "tools"])  # fmt: skip
def test_what_cannot_be_imported(warm, module):
    seen = probed(warm, f"import importlib\nreturn importlib.import_module({module!r}).__name__")
    assert seen.get("error", seen) == "ModuleNotFoundError" or not seen


def test_a_module_that_only_other_exercises_forbid_comes_with_the_job(bwrap):
    free, bound = load("02.overflowing"), load("02.dot")
    lab = "02_where_precision_is_lost"
    free, bound = (next(ex for ex in _of(lab) if bool(ex.forbids) == want) for want in (False, True))
    source = "from ampedu.formats import FORMATS\ndef {}(*a):\n    return sorted(FORMATS)[0]\n"
    with Sandbox("bwrap", [lab], stage.forbidden(_of(lab))) as sandbox:
        for ex, want in ((free, {}), (bound, "ForbiddenImport")):
            seen = sandbox.observe(ex, source.format(ex.answer), ex.answer, ex.cases()).definition
            assert (seen.get("error") if want else seen) == want


def _of(stem):
    from ampedu.exercises import of_stem

    return of_stem(stem)


ENDS = {
    "exit": ("os._exit(3)", "crashed", "status 3"),
    "killed by itself": ("os.kill(os.getpid(), 9)", "crashed", "signal 9"),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "crashed", "signal 11"),
    "interrupt": ("raise KeyboardInterrupt", "crashed", "status 1"),
    "closes everything": ("os.closerange(0, 100)", "crashed", "before it had answered"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_unit_that_ends_itself(warm, name):
    body, end, text = ENDS[name]
    observed = decoded(warm, body)
    assert observed.end == end and text in observed.reason and len(observed.outcomes) == len(CASES)
    assert judging.judged(DECODE, _item(), _answer(), observed).points == 0


def _item():
    right = [{"value": float(i)} for i in range(len(CASES))]
    return data.ExerciseData(CASES, {"any": right})


def _answer():
    return Answer("def decode(*a): pass", "decode", "name")


@pytest.mark.slow
@pytest.mark.parametrize("body", [
    "while True: pass",
    "signal.signal(signal.SIGALRM, signal.SIG_IGN)\n    while True: time.sleep(1)",
    "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\n    while True: pass",
    "sum(iter(int, 1))",
    "pid = os.fork()\n    os.setsid() if pid == 0 else None\n    while True: time.sleep(1)",
])  # fmt: skip
def test_endless_loops_end(warm, body):
    observed = decoded(warm, body)
    assert observed.end == "timeout" and all("timeout" in outcome for outcome in observed.outcomes)
    assert probed(warm, "return 1") == 1


def test_a_definition_that_does_not_end_ends_with_the_time_of_the_submission(warm):
    observed = warm.observe(DECODE, "import time\ntime.sleep(600)\ndef decode(): pass", "decode", CASES, within=1.0)
    assert observed.end == "timeout" and observed.definition is None


def test_memory_bombs(bwrap):
    with Sandbox("bwrap", [LAB], memory=1 << 30) as sandbox:
        assert decoded(sandbox, "return bytearray(2 << 30)").outcomes[0]["error"] == "MemoryError"
        many = """for _ in range(15):
        if os.fork() == 0:
            block = bytearray(b'x') * (150 << 20)
            time.sleep(60)
    time.sleep(1.5)
    return 0.0"""
        observed = decoded(sandbox, many)
        assert observed.end == "crashed" and "1 GiB of memory" in observed.reason


MEMORY = {
    "shared": """import mmap
    for _ in range(4): os.fork()
    blocks = [mmap.mmap(-1, 64 << 20) for _ in range(3)]
    for block in blocks: block.write(b"x" * (64 << 20))
    time.sleep(60)""",
    "of programs that it starts": """for _ in range(40):
        if os.fork() == 0:
            text = "import time; x = bytearray(b'x') * (100 << 20); time.sleep(60)"
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", text])
    time.sleep(60)""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORY)
def test_memory_that_no_process_seems_to_own_counts(bwrap, name):
    with Sandbox("bwrap", [LAB], memory=1 << 30) as sandbox:
        observed = decoded(sandbox, MEMORY[name])
        assert observed.end == "crashed" and "1 GiB of memory" in observed.reason


def test_what_processes_share_counts_once(warm):
    """Fifty children of this one, which all share its 200 MiB or so, do not take 4 GiB."""
    seen = probed(warm, """
        import os, signal, time
        children = []
        while len(children) < 50:
            pid = os.fork()
            children.append(pid) if pid else signal.pause()
        time.sleep(0.5)
        return len(children)
    """)  # fmt: skip
    assert seen == 50


def test_floods_and_forged_frames_are_data_at_most(warm):
    flood = "block = bytes(1 << 20)\n    while True: os.write(4, block)"
    assert decoded(warm, flood).tampered
    junk = "os.write(4, b'x' * 64); return 0.0"
    observed = decoded(warm, junk)
    assert observed.tampered and "unsupported" in observed.outcomes[0]
    result = judging.judged(DECODE, _item(), _answer(), observed)
    assert result.points == 0 and "bytes" in result.review[-1]
    assert decoded(warm, "sys.stdout.write('x' * 10**7); os.write(1, b'y' * 10**7); return 0.0").end == "ok"


def test_bytes_that_a_parser_trips_over_hurt_nobody_else(warm, monkeypatch):
    header = b'{"t0":{"dtype":"F32","shape":[0' + b",4194304" * 15 + b'],"data_offsets":[0,0]}}'
    text = b'{"outcome":{"value":{"tensor":"t0"}}}'
    frame = b"".join(len(part).to_bytes(8, "little") for part in (text, header + bytes(8))) + text
    frame += len(header).to_bytes(8, "little") + header
    assert decoded(warm, f"os.write(4, {frame!r}); return 0.0").tampered
    assert probed(warm, "return 1") == 1
    monkeypatch.setattr(sandbox_module, "_collect", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        warm.probe("def probe(): return 1")
    monkeypatch.undo()
    assert probed(warm, "return 1") == 1


@pytest.mark.parametrize(
    "value",
    ["torch.empty(2**40, 0)", "torch.empty(2**22, 2**22, 0)", "['x' * 60_000] * 100", "torch.zeros(2048, 1024)"],
)
def test_what_is_too_large_is_wrong_and_no_accusation(warm, value):
    observed = decoded(warm, f"import torch; return {value}")
    assert observed.end == "ok" and not observed.tampered and len(observed.outcomes) == len(CASES)
    result = judging.judged(DECODE, _item(), _answer(), observed)
    assert (result.points, result.verdict, result.review) == (0, "failed", [])


def test_a_forged_verdict_is_refused(warm):
    forged = """from ampedu.grading import transport
    for message in ({"outcome": {"passed": True}}, {"outcome": {"value": 1.0}, "points": 99}):
        transport.send(4, message)
    return 0.0"""
    observed = decoded(warm, forged)
    assert observed.tampered and judging.judged(DECODE, _item(), _answer(), observed).points == 0


LIBRARIES = "import ctypes, os, resource, time\nimport torch\nlibc = ctypes.CDLL(None, use_errno=True)"
OTHERS = "return [p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]"
# What a unit does; what the next one looks at; what it must see.
REMOVED = {
    "files": (
        "open('/tmp/x', 'w').write('1'); open('/dev/shm/y', 'w').write('1')",
        "return os.listdir('/tmp') + os.listdir('/dev/shm')", [],
    ),
    "processes": ("os.fork() or (os.setsid(), os.fork() or time.sleep(600))", OTHERS, []),
    "patched torch": (
        "torch.equal = torch.isclose = lambda *a, **k: True",
        "return torch.equal(torch.ones(1), torch.zeros(1))", False,
    ),
    "patched builtins": ("import builtins; builtins.len = lambda x: 7", "return len([])", 0),
    "patched judge": (
        "from ampedu.exercises import judge; judge.observe = None",
        "from ampedu.exercises import judge; return judge.observe is None", False,
    ),
    "variables": ("os.environ['PLANTED'] = '1'", "return os.environ.get('PLANTED')", None),
    "time of the folder": ("os.utime('/tmp', (7, 7))", "return int(os.stat('/tmp').st_mtime) == 7", False),
    "signals to the worker": ("[os.kill(1, n) for n in range(1, 65) if n not in (32, 33)]", "return os.getppid()", 1),
}  # fmt: skip
ADD_KEY, REQUEST_KEY = {"x86_64": (248, 249), "aarch64": (217, 218)}.get(os.uname().machine, (-1, -1))
# The same for what makes the judge throw the sandbox away, with the names that the worker gives it.
NOTICED = {
    "a folder that cannot be opened": (
        "os.makedirs('/tmp/d/e'); open('/tmp/d/e/f', 'w').close(); os.chmod('/tmp/d', 0)",
        "return os.listdir('/tmp')", [], "/tmp",
    ),
    "mode of the folder": (
        "os.chmod('/dev/shm', 0o500)", "return oct(os.stat('/dev/shm').st_mode & 0o777)", "0o755", "/dev/shm",
    ),
    "extended attributes": ("os.setxattr('/tmp', 'user.x', b'1')", "return os.listxattr('/tmp')", [], "/tmp"),
    "System V memory": ("libc.shmget(1234, 4096, 0o1666)", "return libc.shmget(1234, 0, 0)", -1, "sysvipc/shm"),
    "System V queue": ("libc.msgget(1234, 0o1666)", "return libc.msgget(1234, 0)", -1, "sysvipc/msg"),
    "System V semaphore": ("libc.semget(1234, 1, 0o1666)", "return libc.semget(1234, 0, 0)", -1, "sysvipc/sem"),
    "key": (
        f"libc.syscall({ADD_KEY}, b'user', b'planted', b'1', 1, ctypes.c_long(-4))",
        f"return libc.syscall({REQUEST_KEY}, b'user', b'planted', None, ctypes.c_long(-4))", -1, "key-users",
    ),
    "priority of the worker": (
        "os.setpriority(os.PRIO_PROCESS, 1, 19)", "return os.getpriority(os.PRIO_PROCESS, 0)", 0, "priority",
    ),
    "limits of the worker": (
        "resource.prlimit(1, resource.RLIMIT_NOFILE, (200, 200))",
        "return resource.prlimit(1, resource.RLIMIT_NOFILE)[0] == 200", False, "RLIMIT_NOFILE",
    ),
    "scheduler of the worker": (
        "os.sched_setscheduler(1, os.SCHED_BATCH, os.sched_param(0))",
        "return os.sched_getscheduler(1)", 0, "scheduler",
    ),
    "cores of the worker": (
        "os.sched_setaffinity(1, {min(os.sched_getaffinity(0))})", "return len(os.sched_getaffinity(1))",
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, "affinity",
    ),
    "counters of the network": (
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(bytes(77), ('127.0.0.1', 9))",
        "return '77' in open('/proc/net/dev').read()", False, "net/dev",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REMOVED)
def test_nothing_is_left_for_the_next_unit(warm, name):
    plant, look, clean = REMOVED[name]
    assert probed(warm, look, LIBRARIES) == clean
    before = warm.starts
    probed(warm, f"{plant}\nreturn 1", LIBRARIES)
    assert probed(warm, look, LIBRARIES) == clean and warm.starts == before, warm.dirty


@pytest.fixture(scope="module")
def unfiltered(bwrap):
    """Without the filter of system calls, which would refuse half of NOTICED."""
    with Sandbox("bwrap", (), filtered=False) as sandbox:
        yield sandbox


REFUSED = {
    "memory that no limit counts": "os.memfd_create('x')",
    "a user namespace": "os.unshare(0x10000000) if hasattr(os, 'unshare') else failing(libc.unshare(0x10000000))",
    "System V memory": "failing(libc.shmget(1234, 4096, 0o1666))",
    "POSIX queue": "failing(libc.mq_open(b'/planted', 0o102, 0o666, None))",
    "key": f"failing(libc.syscall({ADD_KEY}, b'user', b'planted', b'1', 1, ctypes.c_long(-4)))",
    "tracing a process of its own": "failing(libc.ptrace(0, 0, 0, 0))",
    "the second table of numbers": "failing(libc.syscall(0x40000000 + 39))",
    "other cores than its own": "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "limits of the worker": "resource.prlimit(1, resource.RLIMIT_NOFILE, (200, 200))",
}
FAILING = """
def failing(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""


@pytest.mark.skipif(syscalls.program() is None, reason="no numbers of system calls are listed for this machine")
@pytest.mark.parametrize("name", REFUSED)
def test_system_calls_that_are_refused(warm, name):
    seen = probed(warm, f"{REFUSED[name]}\nreturn 'done'", LIBRARIES + FAILING)
    assert seen["error"] in ("PermissionError", "OSError") and "not permitted" in seen["text"]


def test_what_cannot_be_removed_is_noticed_and_the_sandbox_thrown_away(unfiltered):
    warm = unfiltered
    plants = [plant for plant, *_ in NOTICED.values()]
    trying = "try:\n    {}\nexcept (OSError, AttributeError) as error: failed.append(str(error))"
    together = [trying.format(plant) for plant in plants]
    assert probed(warm, "\n".join(["failed = []", *together, "return failed"]), LIBRARIES) == []
    names = {name for *_, name in NOTICED.values()} - ({"affinity"} if len(os.sched_getaffinity(0)) == 1 else set())
    assert names <= set(warm.dirty)
    looks = {name: probed(warm, look, LIBRARIES) for name, (_, look, *_) in NOTICED.items()}
    assert looks == {name: clean for name, (_, _, clean, _) in NOTICED.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTICED)
def test_each_alone_is_noticed(unfiltered, name):
    warm = unfiltered
    plant, look, clean, noticed = NOTICED[name]
    assert probed(warm, look, LIBRARIES) == clean
    probed(warm, f"{plant}\nreturn 1", LIBRARIES)
    assert noticed in warm.dirty or (noticed == "affinity" and clean == 1)
    assert probed(warm, look, LIBRARIES) == clean


@pytest.mark.slow
def test_a_deep_tree_is_thrown_away_with_its_sandbox(warm):
    assert probed(warm, "for _ in range(3000): os.mkdir('d'); os.chdir('d')\nreturn 1", LIBRARIES) == 1
    assert probed(warm, "return os.listdir('/tmp')", LIBRARIES) == []


def test_a_clean_unit_keeps_the_worker_and_a_dirty_one_does_not(warm):
    probed(warm, "return 1")
    before = warm.starts
    probed(warm, "open('/tmp/x', 'w').write('1'); os.fork(); return 1", LIBRARIES)
    probed(warm, "return 1")
    assert warm.starts == before
    probed(warm, "os.setpriority(os.PRIO_PROCESS, 1, 19); return 1", LIBRARIES)
    probed(warm, "return 1")
    assert warm.starts == before + 1


def test_the_worker_shares_no_memory_with_its_units(warm):
    assert warm.start()["shared"] == []
    maps = probed(warm, "return open('/proc/self/maps').read()")
    assert not [line for line in maps.splitlines() if line.split()[1][1] == "w" and line.split()[1][3] == "s"]


def test_an_answer_in_the_sandbox_gives_what_it_gives_here(warm):
    source = "import math\ndef decode(code, e, m):\n    return math.ldexp(code, -m) if code % 3 else (code, ['é'])\n"
    space = {}
    exec(source, space)
    here = judge.observe(DECODE, space["decode"], CASES)
    assert warm.observe(DECODE, source, "decode", CASES).outcomes == here


def alive(marker):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("kind", ["bwrap", pytest.param("none", marks=pytest.mark.slow)])
def test_nothing_runs_on_when_the_judge_is_killed(kind, request, tmp_path):
    if kind == "bwrap":
        request.getfixturevalue("bwrap")
    marker = f"marker-{os.getpid()}-{kind}"
    code = f"""
import sys
from ampedu.grading.sandbox import Sandbox
sandbox = Sandbox({kind!r}, (), folder={str(tmp_path)!r})
sandbox.start()
print("ready", flush=True)
sandbox.probe('''
import os, sys
def probe():
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(120)", {marker!r}])
''', within=100)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT) as judge_process:
        assert judge_process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 30
        inside = f"sleep(120)\0{marker}".encode()
        while not alive(inside) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive(inside)
        judge_process.kill()
    deadline = time.monotonic() + 30
    while alive(inside) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(inside)


def test_none_grades_with_the_same_steps(tmp_path):
    with Sandbox("none", [LAB], folder=tmp_path) as sandbox:
        assert probed(sandbox, "return 41 + 1") == 42
        assert decoded(sandbox, "os._exit(3)").end == "crashed"
        assert len(decoded(sandbox, "return 1.0").outcomes) == len(CASES)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_in_the_temporary_folder_is_seen(bwrap, tmp_path, monkeypatch):
    site = Path(tempfile.mkdtemp(dir="/tmp"))  # the sandbox has a scratch folder of its own there
    try:
        (site / "in_tmp.py").write_text("FOUND = 42")
        (site / "ampedu").mkdir()
        (site / "ampedu" / "key.py").write_text("")
        for path in (site, *site.rglob("*")):
            path.chmod(0o755)
        seen = confine.view()
        more = confine.View(seen.python, (*seen.binds, str(site)), (*seen.sites, str(site)), (f"{site}/ampedu",))
        monkeypatch.setattr(confine, "view", lambda: more)
        with Sandbox("bwrap", [LAB], folder=tmp_path) as sandbox:
            assert probed(sandbox, "import in_tmp; return in_tmp.FOUND") == 42
            masked = more.inside(more.masked[0])
            looks = f"import os; return [os.path.exists({str(site)!r}), os.listdir({masked!r})]"
            assert probed(sandbox, looks) == [False, []]
    finally:
        shutil.rmtree(site)


def test_answers_in_a_folder_that_the_sandbox_shows_are_refused(monkeypatch):
    seen = confine.view()
    inside = f"{seen.sites[0]}/ampedu-of-the-tests/solutions"
    assert confine.exposed(seen, [inside, "/nowhere/solutions"]) == [inside]
    if sys.platform == "linux":
        monkeypatch.setattr(selftest.shutil, "which", lambda name: "/usr/bin/bwrap")
        with pytest.raises(SandboxError, match="Move it elsewhere"):
            selftest.choose("auto", [inside])


def test_without_bubblewrap_auto_refuses_and_says_what_to_do(monkeypatch):
    monkeypatch.setattr(selftest.shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="--sandbox none"):
        selftest.choose("auto", [])
    assert selftest.choose("none", []) == "none"
    monkeypatch.setattr(selftest.sys, "platform", "darwin")
    with pytest.raises(SandboxError, match="Linux"):
        selftest.choose("bwrap", [])
