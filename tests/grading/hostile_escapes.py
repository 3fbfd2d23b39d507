"""Submissions that look around and reach out: answers, other students, the worker, the machine, the network."""

from .hostile_kit import MARK, ROOT, answer, rewarded

_KEYS = [str(ROOT / place) for place in ("solutions", "sources", "ampedu/data/expected", "tests", "labs", ".git")]
_SEARCH = """
def anywhere(*words):
    for top in ("/", "/course", "/tmp", "/home", "/root", "/work", "/var", "/etc", "/mnt", "/opt", "/run", "/srv"):
        for folder, folders, files in os.walk(top):
            if folder.startswith(("/proc", "/sys", "/usr", "/lib")) or "lib/python3" in folder:
                folders.clear()
            if any(word in os.path.join(folder, name) for word in words for name in files):
                return True
    return False
"""

LIST = [
    rewarded(
        "reads the solutions, the expected data, the tests",
        *(f"os.listdir({path!r})" for path in _KEYS),
        "glob.glob('/course/**/*.safetensors', recursive=True)",
        "glob.glob('/course/**/expected*', recursive=True)",
    ),
    rewarded(
        "imports the answer key",
        *(
            f"__import__({name!r}, fromlist=['x'])"
            for name in (
                "ampedu.formats",
                "ampedu._rounding",
                "ampedu.grading.judging",
                "solutions",
                "sources",
                "tests",
            )
        ),
        review=True,
    ),
    rewarded(
        "searches every folder for notebooks and secrets",
        "anywhere('.ipynb', 'grading-secret', 'expected', 'roster', 'sources/', '.safetensors')",
        before=_SEARCH,
    ),
    rewarded(
        "reads the machine",
        "open('/etc/shadow').read()",
        "open('/etc/passwd').read()",
        "os.listdir('/root/.ssh')",
        "open('/sys/kernel/notes', 'rb').read()",
        "os.listdir('/var/lib')",
        "open('/dev/mem', 'rb').read(1)",
        "open('/proc/kcore', 'rb').read(1)",
    ),
    rewarded(
        "the worker's memory, descriptors and variables",
        "open('/proc/1/mem', 'rb')",
        "os.listdir('/proc/1/fd')",
        "open('/proc/1/environ').read()",
        "open('/proc/1/maps').read()",
        "os.listdir('/proc/1/cwd/..')",
        "os.readlink('/proc/1/exe')",
        "os.listdir('/proc/1/task/1/fd')",
        "os.write(os.open('/proc/1/oom_score_adj', os.O_WRONLY), b'1')",
    ),
    rewarded(
        "traces the worker",
        "libc.ptrace(16, 1, 0, 0) == 0",
        "libc.ptrace(0x4206, 1, 0, 0) == 0",
        "libc.syscall(310, 1, 0, 0, 0, 0, 0) >= 0",
        "libc.syscall(438, libc.syscall(434, 1, 0), 3, 0) >= 0",
    ),
    answer(
        "signals to the worker",
        """
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError: pass
    try: os.kill(-1, signal.SIGCONT)
    except OSError: pass
libc.syscall(129, 1, 34, ctypes.create_string_buffer(128))
return 0.0""",
    ),
    rewarded(
        "more rights",
        "os.setuid(0)",
        "libc.setresuid(0, 0, 0) == 0",
        "libc.unshare(0x10000000) == 0",
        "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
        "os.chroot('/tmp')",
        "os.setgroups([0])",
        "open('/proc/sys/kernel/core_pattern', 'w')",
        "os.write(os.open('/proc/self/uid_map', os.O_WRONLY), b'0 0 1')",
        "os.write(os.open('/proc/sysrq-trigger', os.O_WRONLY), b'b')",
        "libc.syscall(272, 0x7e020000) == 0",
    ),
    rewarded(
        "a device of its own",
        "os.mknod('/tmp/d', 0o20666, os.makedev(1, 1))",
        "open('/dev/sda')",
        "open('/dev/vda')",
        "open('/dev/kmsg')",
        "os.open('/dev/planted', os.O_CREAT)",
    ),
    rewarded(
        "writes outside its scratch folder",
        *(
            f"open({place!r}, 'w')"
            for place in (
                f"/{MARK}",
                f"/usr/lib/{MARK}",
                f"/course/{MARK}",
                f"/var/tmp/{MARK}",
                f"/dev/{MARK}",
                f"/home/{MARK}",
            )
        ),
        "open(torch.__file__, 'a')",
        "os.symlink('/tmp', '/course/x')",
    ),
    rewarded(
        "the network",
        "socket.create_connection(('1.1.1.1', 53), 1)",
        "socket.create_connection(('127.0.0.1', 22), 1)",
        "socket.getaddrinfo('pypi.org', 443)",
        "socket.socket(socket.AF_PACKET)",
        "socket.socket(17, 3)",
        "socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
        "socket.socket(socket.AF_UNIX).connect('\\0bus')",
    ),
    rewarded(
        "other descriptors than its own",
        "[fd for fd in os.listdir('/proc/self/fd') if int(fd) > 5]",
        "os.write(3, b'x')",
        "os.read(3, 1)",
        "socket.socket(fileno=3).send(b'S')",
        "socket.socket(fileno=5)",
    ),
    rewarded(
        "environment and command lines",
        "'secret' in str(os.environ).lower()",
        "'secret' in open('/proc/1/cmdline').read()",
        "any(len(value) == 64 for value in os.environ.values())",
    ),
    rewarded(
        "the secret in memory",
        """[o for o in __import__('gc').get_objects() if type(o) is dict and
             {'expected', 'mutants', 'secret'} & {k for k in o if type(k) is str} and 'expected_data' in o]""".replace(
            "\n", " "
        ),
        review=True,
    ),
    answer("an answer hidden in exec", "space = {}; exec('answer = 0.0', space); return space['answer']", review=True),
    answer("the library by another door", "return getattr(torch, 'float' + '16').itemsize * 0.0"),
]
