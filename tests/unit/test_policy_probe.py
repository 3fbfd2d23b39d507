"""probe: dtypes of expressions under a policy, in a process that may die while the caller's lives."""

import ctypes
import os
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampedu.policy import ProbeError, autocast_policy, fake, probe, probing, shipping, stored, worker
from ampedu.policy.calls import CALLS, NAMES, call_for, evaluate
from ampedu.policy.kinds import Policy

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
LOW, WIDE = torch.float16, torch.float32
# What a call gives for (all float32, all low) inputs.
EXPECTED = {
    Policy.lower_precision: (LOW, LOW),
    Policy.float32: (WIDE, WIDE),
    Policy.float32_set_dtype: (WIDE, WIDE),
    Policy.promote_widest: (WIDE, LOW),
}
# Not callable on fake tensors: what they return depends on values, or torch has no fake or no CPU-free kernel for them.
NOT_CALLABLE = {
    "cpu": {
        *("_grid_sampler_2d_cpu_fallback", "ctc_loss.IntList", "ctc_loss.Tensor", "linalg_lstsq", "mkldnn_rnn_layer"),
        *("linalg_matrix_rank", "linalg_matrix_rank.tol_tensor"),  # integers
        *("linalg_matrix_rank.atol_rtol_float", "linalg_matrix_rank.atol_rtol_tensor"),
    },
    "cuda": {"_cudnn_rnn"},
    "mps": {"scaled_dot_product_attention"},
    "xpu": {"scaled_dot_product_attention"},
}
if VERSION < (2, 13):
    NOT_CALLABLE["cpu"] |= {"quantile", "quantile.scalar", "nanquantile", "nanquantile.scalar"}
    for names in NOT_CALLABLE.values():
        names |= {"_convolution", "_convolution.deprecated"}


def is_for_named_tensors(name):
    """Overloads that torch 2.13 does not have any more."""
    return "dimname" in name.lower() or ".names_" in name


@pytest.fixture(autouse=True)
def own_store(monkeypatch, tmp_path):
    monkeypatch.setattr(stored, "folder", lambda: tmp_path / "store")


@pytest.fixture(scope="module", autouse=True)
def ended():
    yield
    probing.stop()


@pytest.mark.parametrize("device", ["cuda", "cpu", "mps", "xpu"])
def test_agrees_with_the_policy_of_every_operation_that_can_be_called(device):
    policy = autocast_policy(device)
    wrong, absent = {}, set()
    for name, kind in policy.items():
        if is_for_named_tensors(name):
            continue
        call = call_for(name)
        if call is None or name in NOT_CALLABLE[device]:
            absent.add(name)
            continue
        if kind is Policy.banned:
            with pytest.raises(ProbeError, match="unsafe to autocast"):
                probe(call.expression, *call.shapes, device=device)
            continue
        seen = tuple(
            probe(call.expression, *((shape, dtype) for shape in call.shapes), device=device) for dtype in (WIDE, LOW)
        )
        if kind is Policy.promote_widest:
            for order in ((LOW, WIDE), (WIDE, LOW)):
                mixed = [(shape, order[place % 2]) for place, shape in enumerate(call.shapes)]
                assert probe(call.expression, *mixed, device=device) == WIDE, name
        if seen != EXPECTED[kind]:
            wrong[name] = (kind, seen)
    assert wrong == {}
    assert absent <= NOT_CALLABLE[device]


@pytest.mark.parametrize(
    ("fn", "shapes", "expected"),
    [
        ("x @ y", [(2, 3), (3, 4)], LOW),
        (torch.mm, [(2, 3), (3, 4)], LOW),
        (torch.ops.aten.mm, [(2, 2), (2, 2)], LOW),
        (torch.ops.aten.mm.default, [(2, 2), (2, 2)], LOW),
        (torch.Tensor.exp, [((2, 2), LOW)], WIDE),
        (F.cross_entropy, [((2, 3), LOW), ((2,), torch.int64)], WIDE),
        (lambda x: x.half().mean(), [4], LOW),
        (lambda x: x.half() ** 2, [4], WIDE),
        (lambda x, y: (x @ y, [x + 1], {"sum": x.half().sum()}), [(2, 2), (2, 2)], (LOW, [WIDE], {"sum": WIDE})),
        (lambda x: x.double() @ x.double(), [(2, 2)], torch.float64),
        (lambda x: torch.exp_(x.half()), [4], LOW),
        (lambda x: torch.mm(x, x, out=torch.empty_like(x)), [(2, 2)], WIDE),
        (lambda x: x.half().softmax(0, dtype=torch.float16), [4], LOW),
        (lambda x: x.dtype, [4], WIDE),
        ("F.scaled_dot_product_attention(x, x, x)", [(1, 2, 4, 8)], LOW),
        ("F.batch_norm(x, None, None, training=True)", [((2, 3, 4, 4), LOW)], LOW),
        ("F.interpolate(x, scale_factor=2)", [((1, 3, 4, 4), LOW)], WIDE),
    ],
)
def test_cuda_policy(fn, shapes, expected):
    assert probe(fn, *shapes) == expected


def test_dtype_and_device():
    assert probe(torch.mm, (2, 2), (2, 2), dtype=torch.bfloat16) == torch.bfloat16
    assert probe(torch.exp, ((2,), LOW), device="cpu") == LOW
    assert probe(torch.exp, ((2,), LOW), device="mps") == WIDE
    assert probe("torch.empty(1, device=device)", device="cuda") == WIDE
    assert probe("x @ x", torch.empty(2, 2, dtype=torch.float64)) == torch.float64
    assert probe(lambda x: nn.BatchNorm1d(3, device="mps")(x), ((2, 3), LOW), device="mps") == WIDE


def test_regions_inside_the_expression():
    def nested(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            first = x @ x
        with torch.autocast("cuda", enabled=False):
            second = x @ x
        return first, second, x @ x

    assert probe(nested, (2, 2)) == (torch.bfloat16, WIDE, LOW)


class Doubled(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, gradient):
        return gradient * 2


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(self.linear(x))


def test_modules_of_torch():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert probe(layer, (1, 4, 8)) == WIDE
    assert probe(layer.eval(), (1, 4, 8)) == WIDE
    assert probe(nn.GRU(4, 4), (3, 2, 4)) == (LOW, LOW)
    assert probe(nn.LSTM(4, 4), (3, 2, 4)) == (LOW, (LOW, LOW))
    assert probe(nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)), (2, 3, 8, 8)) == LOW
    assert probe(nn.MultiheadAttention(8, 2), *[(2, 4, 8)] * 3) == (LOW, WIDE)
    assert layer.linear1.weight.device.type == "cpu"
    assert layer.linear1.weight.requires_grad


def as_in_a_notebook(source):
    """What a notebook defines: the names of a main module that no other process can import."""
    space = {"__name__": "__main__"}
    exec(source, space)
    return space


def test_what_a_notebook_defines_travels():
    space = as_in_a_notebook(
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\nscale = 2\nweight = torch.ones(4, 4)\n"
        "class Base(nn.Module):\n    half = property(lambda self: 0.5)\n"
        "class Net(Base):\n    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(4, 4)\n"
        "    def forward(self, x):\n        return helper(self.layer(x)) * self.half * scale\n"
        "def helper(x, depth=1):\n    return helper(x, depth=0) if depth else F.softmax(x @ weight, -1)\n"
        "class Twice(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): return x.half() * 2\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g\n"
        "net = Net()\ncall = lambda x: net(x)\napply = lambda x: Twice.apply(x)\n"
        "def closed():\n    names = [torch.exp]\n    return lambda x: [f(x) for f in names][0]\nclosed = closed()\n"
    )
    assert probe(space["call"], (2, 4)) == WIDE
    assert probe(space["net"], (2, 4)) == WIDE
    assert probe(space["helper"], (2, 4)) == WIDE
    assert probe(space["apply"], (2, 4)) == LOW
    assert probe(space["closed"], ((2,), LOW)) == WIDE
    assert probe(lambda x: Doubled.apply(x.half()), (2,)) == WIDE
    assert probe(Net(4), (2, 4)) == WIDE


@pytest.mark.parametrize(
    ("fn", "shapes", "words"),
    [
        (lambda x, y: x @ y, [(2, 3), (2, 3)], "RuntimeError: .*same reduction dim"),
        (lambda x: undefined_name(x), [2], "NameError: name 'undefined_name'"),  # noqa: F821
        (lambda x: object(), [2], "TypeError: the result is a object"),
        (lambda x: x.sum().item(), [2], "DataDependent"),
        (lambda x: exit(), [2], "SystemExit"),
        (lambda x: os._exit(3), [2], "ended the worker process .exit status 3"),
        ("x +", [2], "SyntaxError"),
        (F.binary_cross_entropy, [2, 2], "unsafe to autocast"),
        (3, [2], "give a function, or an expression as text"),
        ("x", ["2"], "is not a shape"),
        ("x", [(2, -1)], "is not a shape"),
        ("x", [True], "is not a shape"),
    ],
)
def test_a_mistake_is_a_probe_error(fn, shapes, words):
    with pytest.raises(ProbeError, match=words):
        probe(fn, *shapes)
    assert probe("x @ x", (2, 2)) == LOW


def test_wrong_device_and_dtype():
    with pytest.raises(ValueError, match="without an index"):
        probe("x", 2, device="cuda:0")
    with pytest.raises(ValueError, match="Use torch"):
        probe("x", 2, dtype=torch.float32)


def test_what_cannot_travel_is_named():
    lock = threading.Lock()
    with pytest.raises(ProbeError, match=r"cannot pickle '_thread.lock' object.*as text"):
        probe(lambda x: (lock, x)[1], 2)


def test_survives_200_expressions_whose_inputs_require_gradients():
    weight = nn.Parameter(torch.ones(4, 4))

    def enabled(x):
        with torch.enable_grad():
            return x.requires_grad_() @ x

    def assigned(x):
        x.requires_grad = True
        return x @ x

    expressions = [
        lambda x: x.requires_grad_() @ x,
        lambda x: x @ weight,
        lambda x: F.linear(x, nn.Parameter(torch.ones(4, 4, device=x.device))),
        lambda x: nn.Linear(4, 4, device="cuda")(x),
        lambda x: x @ torch.ones(4, 4, device="cuda", requires_grad=True),
        lambda x: x @ torch.zeros_like(x, requires_grad=True),
        enabled,
        assigned,
    ]
    process = probing._worker().process.pid
    for turn in range(200):
        assert probe(expressions[turn % len(expressions)], (4, 4)) == LOW, turn % len(expressions)
    assert probing._worker().process.pid == process


def abort_of_torch(x):
    """What torch does to a tensor of an absent device that requires gradients, without the worker's precautions."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    (ctypes.c_void_p * 2).in_dll(library, fake.GUARD_TABLE)[1] = None
    with torch._C.DisableTorchFunction():
        x.requires_grad_()
        return x @ x


@pytest.mark.skipif(
    torch.backends.cuda.is_built() or not hasattr(os, "fork") or torch.version.git_version is None,
    reason="only a build without CUDA aborts",
)
def test_an_abort_inside_torch_becomes_a_probe_error():
    with pytest.raises(ProbeError, match=r"SIGABRT.: PyTorch is not linked with support for cuda devices"):
        probe(abort_of_torch, (2, 2))
    assert probe("x @ x", (2, 2)) == LOW


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there the worker starts anew, which takes seconds")
def test_many_aborts_leave_the_worker_usable():
    probe("x @ x", (2, 2))
    for _ in range(20):
        with pytest.raises(ProbeError, match="SIGABRT"):
            probe(lambda x: os.abort(), 2)
        assert probe("x @ x", (2, 2)) == LOW


def test_the_time_limit():
    def endless(x):
        while True:
            pass

    with pytest.raises(ProbeError, match=r"took longer than 0\.2 s"):
        probe(endless, 2, seconds=0.2)
    assert probe("x @ x", (2, 2)) == LOW


def test_what_an_expression_prints_stays_out_of_the_way(capfd):
    assert probe(lambda x: (print("hello"), os.write(1, b"hello"), os.write(2, b"hello"), x)[3], 2) == WIDE
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_ends_the_worker_and_the_next_call_starts_another(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    probe("x", 2)
    first = probing._current
    monkeypatch.setattr(first, "_next", interrupt)
    with pytest.raises(KeyboardInterrupt):
        probe("x", 2)
    assert first.process.returncode is not None
    assert probe("x @ x", (2, 2)) == LOW
    assert probing._current is not first


def test_a_worker_that_was_killed_is_replaced():
    probe("x", 2)
    probing._current.process.kill()
    probing._current.process.wait()
    assert probe("x @ x", (2, 2)) == LOW


def test_a_worker_that_never_answers(monkeypatch):
    probing.stop()
    monkeypatch.setattr(probing, "START_SECONDS", 0.01)
    with pytest.raises(ProbeError, match="did not start"):
        probe("x", 2)


def test_a_worker_that_fails_to_start_says_why(monkeypatch):
    probing.stop()
    monkeypatch.setattr(probing.Worker, "program", "raise ImportError('no torch here')")
    with pytest.raises(ProbeError, match="ImportError: no torch here"):
        probe("x", 2)


def test_from_several_threads():
    results = []
    threads = [
        threading.Thread(target=lambda: results.append([probe("x @ x", (2, 2)) for _ in range(5)])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[LOW] * 5] * 4


def test_warm_up_starts_it_once():
    probing.stop()
    probing.warm_up()
    process = probing._current.process.pid
    assert probe("x @ x", (2, 2)) == LOW
    probing.warm_up()
    assert probing._current.process.pid == process


@pytest.mark.slow
def test_without_fork_a_new_worker_is_started(monkeypatch):
    probing.stop()
    monkeypatch.setattr(probing.Worker, "program", "import os; vars(os).pop('fork', None); " + probing.Worker.program)
    with pytest.raises(ProbeError, match="ended the worker process"):
        probe(lambda x: os.abort(), 2)
    first = probing._current
    assert probe("x @ x", (2, 2)) == LOW
    assert probing._current is not first
    probing.stop()


class TestInThisProcess:
    """The parts of the worker, without the worker."""

    def test_run(self):
        payload = shipping.pack(("x @ y", [((2, 3), WIDE), ((3, 4), WIDE)]))
        assert fake.run(payload, "cpu", torch.bfloat16) == torch.bfloat16
        assert not torch.is_autocast_enabled("cpu")

    def test_without_the_private_table_of_torch(self, monkeypatch):
        monkeypatch.setattr(fake, "GUARD_TABLE", "not_there")
        assert fake._let_absent_devices_pass() is None

    def test_frames(self):
        reading, writing = os.pipe()
        worker.write(writing, b"one")
        worker.write(writing, b"")
        os.close(writing)
        with open(reading, "rb", buffering=0) as stream:
            assert [worker.read(stream.fileno()) for _ in range(3)] == [b"one", b"", None]

    def test_what_importable_things_become(self):
        for value in (F.softmax, nn.Linear, torch.exp, torch.ops.aten, torch.ops.aten.mm, os.path, len, Path("a")):
            assert shipping.unpack(shipping.pack(value)) == value

    def test_a_class_with_slots_is_refused(self):
        value = type("Slotted", (), {"__slots__": ("a",), "__module__": "__main__"})
        with pytest.raises(shipping.CannotShip, match="__slots__"):
            shipping.pack(value)

    def test_calls(self):
        assert call_for("no such operation") is None
        assert all(len(rest) <= len(NAMES) for _, *rest in CALLS.values())
        assert evaluate("x + y + (device == 'cpu')", [1, 2]) == 4
