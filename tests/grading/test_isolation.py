"""No submission influences another, though they share a warm worker: what one plants, the next one does not find."""

import json

import pytest

from ampedu.exercises import data
from ampedu.grading import course, slot
from ampedu.grading.ingest import Submission

from .hostile_kit import LAB, MARK, PREFACE, ROOT, SOLUTION, answer, content, right

PLANTS = {
    "files": f"[open(f'{{d}}/{MARK}', 'w').write('1') for d in ('/tmp', '/dev/shm')]; os.symlink('/', '/tmp/link')",
    "a module to import": "open('/tmp/numpy.py', 'w').write('1/0'); open('/tmp/sitecustomize.py', 'w').write('1/0')",
    "import hooks": "sys.meta_path.insert(0, Hook()); sys.path.insert(0, '/tmp'); sys.path_hooks.clear()",
    "a patched torch": "torch.equal = torch.isclose = torch.Tensor.__add__ = lambda *a, **k: True",
    "patched builtins": "import builtins; builtins.len = lambda x: 1; builtins.round = lambda *a: 7",
    "a patched worker": "from ampedu.exercises import judge, plain; judge.observe = plain.freeze = lambda *a, **k: []",
    "changed defaults": "torch.set_default_dtype(torch.float64); torch.set_num_threads(2)",
    "random states": "torch.manual_seed(7); __import__('random').seed(7)",
    "signals and timers": "signal.signal(signal.SIGALRM, signal.SIG_IGN); signal.setitimer(signal.ITIMER_REAL, 0.001)",
    "tracers and collectors": "__import__('gc').disable(); sys.setprofile(lambda *a: None)",
    "exit handlers": "__import__('atexit').register(os.abort)",
    "processes": "os.fork() or (os.setsid(), os.fork() or time.sleep(600))",
    "threads": "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "variables and folders": "os.environ.update(OMP_NUM_THREADS='9', PATH='/tmp'); os.chdir('/'); os.umask(0o777)",
    "sockets": "s = socket.socket(socket.AF_UNIX); s.bind('\\0planted'); s.listen(); S.append(s)",
    "a changed folder": "os.chmod('/tmp', 0o500)",
    "a slow worker": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "limits of the worker": "resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))",
    "its own death": "os.kill(os.getpid(), 9)",
    "bytes that no worker sends": "os.write(4, b'x' * 10_000)",
}
# What it sees, as one text: the error of its result holds it.
LOOK = """
class Hook:
    def find_spec(self, *a): raise ImportError("planted")
S = []
def seen():
    import gc, random, builtins
    from ampedu.exercises import judge
    maps = [line.split()[-1] for line in open("/proc/self/maps") if line.split()[1][3] == "s"]
    facts = [
        sorted(os.listdir("/tmp")), sorted(os.listdir("/dev/shm")), sorted(os.environ.items()), os.getcwd(),
        os.umask(0o22),
        sorted(name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())),
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), float(torch.rand(1)),
        random.random(),
        torch.equal(torch.ones(1), torch.zeros(1)), len([]), round(2.5), sys.float_info.min / 2 > 0,
        judge.observe.__name__,
        len(sys.meta_path), len(sys.path_hooks), sys.path, len(gc.callbacks), gc.isenabled(), sys.getprofile(),
        threading.active_count(), oct(os.stat("/tmp").st_mode), oct(os.stat("/dev/shm").st_mode), maps,
        os.uname().nodename,
        os.getpriority(os.PRIO_PROCESS, 1), sorted(os.listdir("/proc/self/fd")),
        resource.getrlimit(resource.RLIMIT_NOFILE),
        sorted(name for name in sys.modules if "plant" in name), open("/proc/net/unix").read().count("planted"),
        resource.prlimit(0, resource.RLIMIT_CPU), signal.getsignal(signal.SIGINT), os.getsid(0) == os.getpid(),
    ]
    return repr(facts)
"""


def looking():
    return answer(
        "looks",
        "import hashlib\ntext = seen()\nraise ValueError(hashlib.sha256(text.encode()).hexdigest() + text[:300])",
        LOOK,
    )


def planting(name):
    return answer(name, f"try:\n    {PLANTS[name]}\nexcept OSError: pass\nreturn 0.0", LOOK)


@pytest.fixture
def give(warm, monkeypatch, tmp_path):
    """Grades what a Hostile writes, in the warm sandbox that all tests share; a LabResult."""
    monkeypatch.setattr(slot, "_ready", lambda stem: warm)
    slot.use(slot.Settings("bwrap", b"public", "public", 60.0, 4 << 30, str(tmp_path)), {LAB: data.load(LAB)})
    labs = course.labs(ROOT, LAB)

    def graded(item):
        path = tmp_path / "a.ipynb"
        item(path)
        result = slot.grade(Submission("a", "", "a.ipynb", str(path)), labs, []).result
        path.unlink()
        return result

    return graded


def text(result):
    """All of a result but times."""
    return json.dumps([(e.id, e.verdict, e.points, e.end, e.message, e.error, e.review) for e in result.exercises])


def test_nothing_that_one_plants_is_found_by_the_next(give):
    look, good = looking().make, content(SOLUTION.read_bytes())
    first, marks = text(give(look)), text(give(good))
    assert "ValueError" in first and "planted" not in first
    for name in PLANTS:
        give(planting(name).make)
        assert text(give(look)) == first, name
    assert text(give(good)) == marks


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_the_solution_after_each_plant(give, name):
    give(planting(name).make)
    result = give(content(SOLUTION.read_bytes()))
    assert result.score == result.max_score and result.status == "graded"


def test_the_order_does_not_matter(give):
    plants = [planting(name).make for name in list(PLANTS)[::3]]
    others = [looking().make, answer("right", "return right(*code)").make, answer("wrong", "return 1.0").make]
    forward = [text(give(make)) for make in plants + others]
    backward = [text(give(make)) for make in reversed(plants + others)]
    assert forward == backward[::-1]


def test_one_exercise_does_not_see_what_another_of_the_same_notebook_left(give):
    """Two answers of one notebook run in processes of their own: a table of results cannot be handed over."""
    cells = [
        PREFACE,
        f"SEEN = []\ndef decode(*a):\n    SEEN.append(a); open('/tmp/{MARK}', 'w').write('1'); return 0.0",
        "def ulp(*a):\n    raise ValueError(f'{len(SEEN)} {os.listdir(\"/tmp\")}')",
        right("01.next_up"),
    ]
    from .hostile_kit import notebook_of

    done = {item.id: item for item in give(notebook_of(*cells)).exercises}
    assert "0 []" in done["01.ulp"].error and done["01.next_up"].verdict == "passed"
