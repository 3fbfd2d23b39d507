"""Submissions that take too much, do not end, or leave something running."""

from .hostile_kit import MARK, PREFACE, Hostile, answer, notebook_of

_DAEMON = f"""
if os.fork() == 0:
    os.setsid()
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", "{MARK}"])
    os._exit(0)
return 0.0"""

QUICK = [
    answer("os._exit", "os._exit(0)", status="crashed", says="status 0"),
    answer("a segmentation fault", "ctypes.string_at(0)", status="crashed", says="signal 11"),
    answer("kills itself", "os.kill(os.getpid(), 9)", status="crashed", says="signal 9"),
    answer("KeyboardInterrupt", "raise KeyboardInterrupt", status="crashed"),
    answer("SystemExit", "sys.exit(0)"),
    answer("closes all descriptors", "os.closerange(0, 256)", status="crashed"),
    answer(
        "C stack overflow",
        """
sys.setrecursionlimit(10**9)
def f(*a): return list(map(f, [1]))
return f()""",
        status="crashed",
        says="signal 11",
    ),
    answer("endless recursion", "return decode(*code)"),
    answer("exits at its definition", "return LAST", "LAST = os._exit(0)", status="crashed"),
    answer(
        "fork bomb",
        """
for _ in range(8):
    try: os.fork()
    except OSError: pass
return 0.0""",
    ),
    answer(
        "threads left running",
        """
for _ in range(50):
    try: threading.Thread(target=time.sleep, args=(600,)).start()
    except RuntimeError: pass
return 0.0""",
    ),
    answer("a detached daemon that ignores signals", _DAEMON),
    answer("a child that outlives its parent", "os.fork() == 0 and time.sleep(600)\nreturn 0.0"),
    answer("atexit handlers", "import atexit; atexit.register(lambda: time.sleep(600)); return 0.0"),
    answer("a memory bomb", "return bytearray(64 << 30)"),
    answer("tensors without end", "x = []\nwhile True: x.append(torch.ones(1 << 26))"),
    answer("hidden memory in files", "fd = os.memfd_create('x')\nwhile True: os.write(fd, bytes(1 << 20))"),
    answer(
        "fills the scratch folder",
        f"""
with open("/tmp/{MARK}", "wb") as file:
    while True: file.write(bytes(1 << 20))""",
    ),
    answer("fifty thousand files", "for i in range(50_000): open(f'/tmp/{i}', 'w').close()\nreturn 0.0"),
    answer("descriptors without end", "x = []\nwhile True: x.append(os.pipe())"),
    answer("a core dump", "os.abort()", status="crashed", says="signal 6"),
    answer("an endless magic", "return sum(iter(lambda: 0, 1))", status="timeout"),
]
LONG = [
    answer("an endless loop", "while True: pass", status="timeout"),
    answer(
        "a loop that catches everything",
        """
while True:
    try:
        while True: time.sleep(0.01)
    except BaseException: pass""",
        status="timeout",
    ),
    answer(
        "a loop that ignores signals",
        """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: pass""",
        status="timeout",
        says="had to be killed",
    ),
    answer(
        "signal.alarm canceled",
        "signal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass",
        status="timeout",
        says="had to be killed",
    ),
    answer(
        "sixty processes at full speed",
        """
for _ in range(6):
    try: os.fork()
    except OSError: pass
while True: pass""",
        status="timeout",
    ),
    answer(
        "shared memory that no process owns",
        """
import mmap
for _ in range(5):
    os.fork()
blocks = [mmap.mmap(-1, 64 << 20) for _ in range(3)]
for block in blocks:
    block.write(b"x" * (64 << 20))
time.sleep(60)""",
        status="crashed",
        says="GiB of memory",
    ),
    answer(
        "memory of programs that it starts",
        f"""
for _ in range(50):
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c",
                 "import time; x = bytearray(b'x') * (150 << 20); time.sleep(600)", "{MARK}"])
time.sleep(30)""",
        status="crashed",
        says="GiB of memory",
    ),
    Hostile(
        "a definition that does not end",
        notebook_of(PREFACE, "def decode(x=time.sleep(600)): return 0.0"),
        status="timeout",
    ),
]
LIST = [*QUICK, *LONG]
