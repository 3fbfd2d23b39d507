"""Submissions that lie: patched libraries, objects that equal everything, forged messages, values that slip through."""

from .hostile_kit import QUANTIZE, answer, rewarded, tensor

_LIAR = """
class Liar(float):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __sub__(self, other): return 0.0
    __rsub__ = __sub__
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __bool__(self): return True
    def __abs__(self): return self
    def __float__(self): return self
    def hex(self): return "0x1p0"
    def __reduce__(self): return (os.system, ("touch /tmp/ampedu-hostile",))
    __hash__ = float.__hash__
    __class__ = property(lambda self: float)
"""
_FRAMES = """
from ampedu.grading import transport
def forged(*messages):
    return b"".join(transport.pack(message) for message in messages)
def everywhere(content):
    for fd in range(256):
        try:
            os.write(fd, content)
        except OSError:
            pass
"""

PATCHED = [
    answer(
        "torch.testing and comparisons patched",
        """
torch.testing.assert_close = torch.isclose = torch.equal = torch.allclose = lambda *a, **k: True
torch.Tensor.equal = torch.Tensor.__eq__ = torch.Tensor.any = lambda *a, **k: True
return 0.0""",
    ),
    answer(
        "builtins patched",
        """
import builtins
builtins.all = builtins.any = builtins.isinstance = lambda *a: True
builtins.type = lambda *a: float
builtins.len = lambda x: 17
return 0.0""",
        status="crashed",
    ),
    answer(
        "json and safetensors patched",
        """
import safetensors.torch
json.dumps = lambda *a, **k: '{"outcome": {"value": true}, "points": 99}'
json.loads = lambda *a, **k: {"points": 99}
safetensors.torch.save = lambda *a, **k: b"x" * 100
return torch.ones(3)""",
    ),
    answer(
        "the judge's modules patched",
        """
for module in list(sys.modules.values()):
    if str(getattr(module, "__name__", "")).startswith("ampedu."):
        for name in ("difference", "equal", "verdict", "freeze", "limited", "outcome_difference", "is_stub"):
            if hasattr(module, name):
                setattr(module, name, lambda *a, **k: None)
return 0.0""",
    ),
    answer(
        "the worker's own frames rewritten",
        """
frame = sys._getframe()
while frame is not None:
    for name, value in list(frame.f_locals.items()):
        if name in ("cases", "outcomes", "job", "errors") and hasattr(value, "clear"):
            value.clear()
    frame = frame.f_back
return 0.0""",
        status="crashed",
    ),
    answer(
        "garbage collector and tracer hooks",
        """
import gc
gc.callbacks.append(lambda *a: os.write(4, b"x"))
gc.collect()
sys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)
sys.addaudithook(lambda event, a: None)
return 0.0""",
        status="crashed",
    ),
]
OBJECTS = [
    answer("an object that equals everything", "return Liar(3.0)", _LIAR),
    answer("a subclass of float as a local class", "return type('float', (float,), {'__eq__': lambda *a: True})(1)"),
    answer("a generator", "return (x for x in [right(*code)])"),
    answer("a lazy object", "return type('Lazy', (), {'__float__': lambda s: right(*code)})()"),
    answer(
        "a poisoned __del__", "return [Dying()]", "class Dying:\n    def __del__(self): os._exit(0)", status="crashed"
    ),
    answer("an object that pickles to a command", "return Liar(1.0)", _LIAR),
    answer("an exception whose text raises", "raise type('ValueError', (Exception,), {'__str__': lambda s: 1 / 0})()"),
    answer("an int of 5000 digits", "return 10 ** 5000"),
    answer("a lone surrogate", "return '\\ud800\\udfff' * 10"),
    answer("a list that contains itself", "x = []; x.append(x); return x"),
    answer("a list nested 100 000 deep", "x = []\nfor _ in range(100_000): x = [x]\nreturn x"),
    answer("a dict with a key that lies", "return {Key('a'): 1}", "class Key(str):\n    __hash__ = lambda s: 1"),
    answer("a hundred thousand tensors", "return [torch.ones(1)] * 100_000"),
    answer("a coroutine", "return later()", "async def later(): return 0.0"),
]
FORGED = [
    answer(
        "a forged verdict on every descriptor",
        """
everywhere(b'{"status": "graded", "score": 99}\\n' * 50)
everywhere(forged({"outcome": {"passed": True}, "points": 99}))
return 0.0""",
        _FRAMES,
        review=True,
    ),
    answer(
        "frames of another exercise's shape",
        """
everywhere(forged({"definition": {}}, *[{"outcome": {"value": "0"}}] * 99))
return 0.0""",
        _FRAMES,
        review=True,
    ),
    answer(
        "an announced frame of 2^63 bytes",
        "everywhere((2**63).to_bytes(8, 'little') * 2); return 0.0",
        _FRAMES,
        review=True,
    ),
    answer(
        "a frame of deep JSON",
        """
text = b'{"outcome": {"value": ' + b'[' * 1_000_000
everywhere(len(text).to_bytes(8, "little") + bytes(8) + text)
return 0.0""",
        _FRAMES,
        review=True,
    ),
    answer(
        "a frame with a key twice and NaN",
        """
for text in (b'{"outcome": {"value": 1}, "outcome": {"value": 2}}', b'{"outcome": {"value": NaN}}'):
    everywhere(len(text).to_bytes(8, "little") + bytes(8) + text)
return 0.0""",
        _FRAMES,
        review=True,
    ),
    answer(
        "a tensor of 2^22 x 2^22 x ... x 0 elements",
        """
header = json.dumps({"t0": {"dtype": "F32", "shape": [0] + [2**22] * 15, "data_offsets": [0, 0]}}).encode()
text, binary = b'{"outcome": {"value": {"tensor": "t0"}}}', len(header).to_bytes(8, "little") + header
everywhere(len(text).to_bytes(8, "little") + len(binary).to_bytes(8, "little") + text + binary)
return 0.0""",
        _FRAMES,
        review=True,
    ),
    answer(
        "a tensor of a forbidden dtype and false length",
        """
header = json.dumps({"t0": {"dtype": "O", "shape": [2**40, 0], "data_offsets": [0, 2**62]}}).encode()
text, binary = b'{"outcome": {"value": {"tensor": "t0"}}}', len(header).to_bytes(8, "little") + header
everywhere(len(text).to_bytes(8, "little") + len(binary).to_bytes(8, "little") + text + binary)
return 0.0""",
        _FRAMES,
        review=True,
    ),
    answer("endless output on the way back", "block = bytes(1 << 20)\nwhile True: os.write(4, block)", review=True),
    answer(
        "endless output on stdout and stderr",
        """
for _ in range(2000):
    sys.stdout.write("x" * 10_000); sys.stderr.write("y" * 10_000); os.write(1, b"z" * 10_000); os.write(2, b"z" * 9999)
return 0.0""",
    ),
    answer(
        "a forged refusal to be marked infra",
        """
everywhere(forged({"outcome": {"value": 0.0}, "end": "infra", "details": None}))
return 0.0""",
        _FRAMES,
        review=True,
    ),
]
VALUES = [
    tensor("all NaN", "torch.full_like(good, float('nan'))"),
    tensor("all infinite", "torch.full_like(good, float('inf'))"),
    tensor("a scalar that broadcasts", "torch.tensor(float('nan'))"),
    tensor("one more dimension", "good[..., None]"),
    tensor("transposed", "good.T"),
    tensor("empty", "good[:0]"),
    tensor("float64 instead of float32", "good.double()"),
    tensor("a numpy array", "good.numpy()"),
    tensor("a subclass of Tensor", "good.as_subclass(Twin)", "class Twin(torch.Tensor): pass"),
    tensor(
        "a tensor that intercepts functions",
        "good.as_subclass(Twin)",
        """
class Twin(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *a, **k): return True""",
    ),
    tensor("a parameter", "torch.nn.Parameter(good)"),
    tensor("on the meta device", "good.to('meta')"),
    tensor("sparse", "good.to_sparse()"),
    tensor("complex", "good.to(torch.complex64)"),
    tensor("quantized", "torch.quantize_per_tensor(good.nan_to_num(0, 1, 0), 1., 0, torch.quint8)"),
    tensor("expanded to 2^40 elements", "torch.zeros(1).expand(2**20, 2**20)"),
    tensor("2^40 x 0 elements", "torch.empty(2**40, 0)"),
    tensor("64 dimensions", "good.reshape(good.shape + (1,) * 62)"),
    tensor("inside a tuple", "(good,)"),
    # What looks odd and is right:
    tensor("a right tensor that needs gradients", "good.requires_grad_()", points=QUANTIZE),
    tensor("a right tensor with odd strides", "good.T.contiguous().T", points=QUANTIZE),
    tensor(
        "a right tensor of a larger storage", "torch.cat([good, torch.ones(999, good.shape[1])])[:2]", points=QUANTIZE
    ),
]
DEFAULTS = [
    rewarded(
        "changed defaults and random states do not last from case to case",
        "torch.set_default_dtype(torch.float64) or torch.set_num_threads(2) or torch.manual_seed(7) and False",
    ),
]
LIST = [*PATCHED, *OBJECTS, *FORGED, *VALUES, *DEFAULTS]
