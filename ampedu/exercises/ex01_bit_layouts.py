"""Lab 01: what its functions are called with, and how the answers are written down for comparison."""

import hashlib
import math

import torch

from ampedu.exercises import exercise
from ampedu.exercises.coded import (
    SMALL,
    as_float,
    bias_of,
    binary,
    call_text,
    coded_cases,
    demand_form,
    edge_codes,
    in_gaps,
)

ANSWER_KEY = ("ampedu.formats", "ampedu._float_format", "ampedu._rounding")
CASTS = ("torch.float16", "torch.bfloat16", "torch.half", "numpy.float16", "struct", "ml_dtypes")

LARGE = (*SMALL, (8, 23))


class Coded:
    """Shared by the exercises that get a code and the two widths; name: of the answer."""

    tolerance = "exact"

    def run(self, answer, case):
        return answer(case["code"], *case["widths"])

    def describe(self, case):
        return call_text(self.name, binary(case["code"], case["widths"]), case["widths"])


@exercise(
    "01.decode", answer="decode", points=2, minutes=10, difficulty=1,
    forbids=ANSWER_KEY, equivalents=CASTS, settles=("C07",),
)  # fmt: skip
class Decode(Coded):
    """A number from its bits."""

    name = "decode"

    def cases(self, stream):
        edges = [(name, sign) for name in edge_codes((5, 10)) for sign in (0, 1)]
        subnormals = []
        for sign in (0, 1):
            widths = stream.choice(SMALL)
            mantissa = stream.integer(2, 2 ** widths[1] - 2)
            subnormals.append({"code": mantissa + (sign << sum(widths)), "widths": list(widths)})
        return coded_cases(stream, [], 6) + subnormals + coded_cases(stream, edges, 0)

    def reduce(self, case, raw):
        return as_float(raw)


@exercise(
    "01.decode_e4m3fn", answer="decode_e4m3fn", points=1, minutes=8, difficulty=1,
    forbids=ANSWER_KEY, equivalents=(*CASTS, "torch.float8_e4m3fn"), settles=("R07",),
)  # fmt: skip
class DecodeE4m3fn:
    """The format that gave up infinity."""

    tolerance = "exact"

    def cases(self, stream):
        top = [0x78, *stream.sample(range(0x79, 0x7E), 2), 0x7E]
        codes = [stream.integer(0x08, 0x77) for _ in range(4)] + [stream.integer(1, 7), stream.integer(1, 7) + 128]
        codes += [0x80 + stream.integer(0x08, 0x77), 0, 0x80, *top, 0xFE, 0x7F, 0xFF]
        return [{"code": code} for code in codes]

    def run(self, answer, case):
        return answer(case["code"])

    def reduce(self, case, raw):
        return as_float(raw)

    def describe(self, case):
        return f"decode_e4m3fn({binary(case['code'], (4, 3))})"


@exercise(
    "01.decode_all", answer="decode_all", points=2, minutes=15, difficulty=2,
    forbids=ANSWER_KEY, equivalents=CASTS, seconds=5.0,
)  # fmt: skip
class DecodeAll:
    """All 65 536 codes at once.

    Six formats of 16 bits, the codes in a scrambled order; a digest stands for 16 384 values.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for exponent_bits in (5, 8, 6, 4, 3, 7):
            widths = (exponent_bits, 15 - exponent_bits)
            probes = [edge_codes(widths)[name] for name in ("largest subnormal", "largest", "infinity", "nan")]
            normals = [stream.integer(1 << widths[1], edge_codes(widths)["largest"]) for _ in range(2)]
            probes += [normals[0], normals[1] + 0x8000, 0x8000]
            cases.append(
                {
                    "widths": list(widths),
                    "factor": 2 * stream.integer(0, 2**15 - 1) + 1,  # odd, so that multiplying permutes the codes
                    "offset": stream.integer(0, 2**16 - 1),
                    "probes": probes,
                }
            )
        return cases

    def order(self, case):
        """The 65 536 codes, each once, as int64 from 0 to 65535."""
        return (torch.arange(2**16) * case["factor"] + case["offset"]) % 2**16

    def run(self, answer, case):
        codes = self.order(case).to(torch.int32).to(torch.int16)  # wraps: 32768 becomes -32768
        return answer(codes.reshape(256, 256), *case["widths"])

    def reduce(self, case, raw):
        demand_form(raw, torch.empty(256, 256))
        values = torch.empty(2**16)
        values[self.order(case)] = raw.flatten()
        values = torch.where(values.isnan(), torch.tensor(math.nan), values)  # one NaN pattern for all
        report = {binary(code, case["widths"]): values[code].item() for code in case["probes"]}
        blocks = values.view(torch.int32).reshape(4, 2**14)
        digests = [hashlib.sha256(bytes(block.view(torch.uint8).tolist())).hexdigest()[:8] for block in blocks]
        report["digests of 4 blocks of 16384 codes"] = digests
        return report

    def describe(self, case):
        return call_text("decode_all", "all 65536 codes", case["widths"])


@exercise(
    "01.ulp", answer="ulp", points=2, minutes=10, difficulty=2,
    forbids=ANSWER_KEY, equivalents=("math.ulp", "torch.nextafter", "numpy.spacing"), settles=("C56",),
)  # fmt: skip
class Ulp:
    """How far is the next number?"""

    tolerance = "exact"

    def cases(self, stream):
        cases = []

        def add(x, widths):
            cases.append({"x": x, "widths": list(widths)})

        for sign in (1, -1, 1, -1, 1, -1):
            widths = stream.choice(LARGE)
            exponent = stream.integer(2 - bias_of(widths[0]), bias_of(widths[0]) - 1)
            steps = 2 ** widths[1] + stream.integer(1, 2 ** widths[1] - 2) + 0.25
            add(sign * in_gaps(steps, exponent, widths[1]), widths)
        for sign in (1, -1):  # powers of two, where the gaps on the two sides differ
            widths = stream.choice(LARGE)
            add(sign * 2.0 ** stream.integer(2 - bias_of(widths[0]), bias_of(widths[0])), widths)
        for sign in (1, -1):  # three quarters into the last gap of a binade, and one float below a power of two
            widths = stream.choice(LARGE)
            exponent = stream.integer(2 - bias_of(widths[0]), bias_of(widths[0]) - 1)
            add(sign * in_gaps(2 ** (widths[1] + 1) - 0.25, exponent, widths[1]), widths)
            add(sign * math.nextafter(8.0, 0.0), widths)
        for sign in (1, -1):
            widths = stream.choice(LARGE)
            add(sign * in_gaps(stream.integer(1, 2 ** widths[1] - 2) + 0.5, 1 - bias_of(widths[0]), widths[1]), widths)
        for steps in (0, 1, None):  # zero, the smallest normal number, the largest number
            widths = stream.choice(LARGE)
            low, top, full = 1 - bias_of(widths[0]), bias_of(widths[0]), 2 ** (widths[1] + 1) - 1
            add(in_gaps(full, top, widths[1]) if steps is None else steps * 2.0**low, widths)
        return cases

    def run(self, answer, case):
        return answer(case["x"], *case["widths"])

    def reduce(self, case, raw):
        return as_float(raw)

    def describe(self, case):
        return call_text("ulp", repr(case["x"]), case["widths"])


@exercise(
    "01.next_up", answer="next_up", points=2, minutes=10, difficulty=2,
    forbids=ANSWER_KEY, equivalents=("torch.nextafter", "numpy.nextafter", "math.nextafter"),
)  # fmt: skip
class NextUp(Coded):
    """One step up."""

    name = "next_up"

    def cases(self, stream):
        edges = [(name, sign) for name in edge_codes((5, 10)) for sign in (0, 1)]
        carries = []
        for sign in (0, 1):  # the step that changes the exponent field
            widths = stream.choice(SMALL)
            power = stream.integer(2, 2 ** widths[0] - 2) << widths[1]
            carries.append({"code": power - 1 + sign + (sign << sum(widths)), "widths": list(widths)})
        return coded_cases(stream, [], 6) + carries + coded_cases(stream, edges, 0)

    def reduce(self, case, raw):
        return binary(raw, case["widths"])


@exercise(
    "01.largest_integer", answer="largest_integer", points=1, minutes=8, difficulty=1,
    forbids=ANSWER_KEY, settles=("R02",),
)  # fmt: skip
class LargestInteger:
    """How far can you count?

    To 2 ** (mantissa_bits + 1), or to the end of the range if that comes first.
    """

    tolerance = "exact"

    def cases(self, stream):
        shipped = [(5, 10), (8, 7), (8, 23), (11, 52), (5, 2), (3, 4), (2, 3)]
        drawn = [(stream.integer(6, 10), stream.integer(4, 22)) for _ in range(4)]
        drawn += [(4, stream.integer(8, 12)), (4, stream.integer(2, 5))]
        return [{"widths": list(widths)} for widths in shipped + drawn]

    def run(self, answer, case):
        return answer(*case["widths"])

    def describe(self, case):
        return f"largest_integer(exponent_bits={case['widths'][0]}, mantissa_bits={case['widths'][1]})"


@exercise(
    "01.encode", answer="encode", points=4, minutes=25, difficulty=3,
    forbids=ANSWER_KEY, equivalents=CASTS, settles=("C55", "C56", "C57"),
)  # fmt: skip
class Encode:
    """From a number to its code.

    Nearest, ties to even, in one rounding from a Python float.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []

        def add(place, part, sign=1, formats=LARGE):
            """place: where on the number line; part: the fraction of a gap above a number of the format."""
            widths = stream.choice(formats)
            full, low, top = 2 ** widths[1], 1 - bias_of(widths[0]), bias_of(widths[0])
            even = 2 * stream.integer(0, full // 2 - 2)
            inside = stream.integer(low + 1, top - 1)
            steps, exponent = {
                "normal": (full + even, inside),
                "odd": (full + even + 1, inside),
                "last of binade": (2 * full - 1, inside),
                "subnormal": (even, low),
                "odd subnormal": (even + 1, low),
                "zero": (0, low),
                "last subnormal": (full - 1, low),
                "largest": (2 * full - 1, top),
                "far out": (full + even, top + stream.integer(2, 700)),
            }[place]
            cases.append({"x": sign * in_gaps(steps + part, exponent, widths[1]), "widths": list(widths)})

        for sign in (1, -1, 1, -1):
            add("normal", stream.integer(1, 2**19 - 1) / 2**20, sign)
            add("odd", stream.integer(2**19 + 1, 2**20 - 1) / 2**20, sign)
        for sign in (1, -1):  # ties
            add("normal", 0.5, sign)
            add("odd", 0.5, sign)
            add("last of binade", 0.5, sign)
        add("normal", 0.5 + 2**-26, formats=SMALL)  # a tie for whoever passes through float32
        add("normal", 0.5 + 2**-26, sign=-1, formats=SMALL)
        for sign in (1, -1):
            add("subnormal", stream.integer(2**19 + 1, 2**20 - 1) / 2**20, sign)
            add("odd subnormal", 0.5, sign)
        edges = (("zero", 0.5), ("zero", 0.625), ("last subnormal", 0.75), ("largest", 0.5), ("far out", 0.25))
        for place, part in edges:
            add(place, part, stream.choice((1, -1)))
        add("largest", 0.375)
        add("largest", 0.25, sign=-1)
        for x in (0.0, -0.0, math.inf, -math.inf, math.nan):
            cases.append({"x": x, "widths": list(stream.choice(LARGE))})
        return cases

    def run(self, answer, case):
        return answer(case["x"], *case["widths"])

    def reduce(self, case, raw):
        return binary(raw, case["widths"])

    def describe(self, case):
        return call_text("encode", repr(case["x"]), case["widths"])


@exercise(
    "01.quantize", answer="quantize", points=3, minutes=15, difficulty=3,
    forbids=ANSWER_KEY, equivalents=(*CASTS, "torch.float8_e4m3fn", "torch.float8_e5m2"), settles=("R07",),
)  # fmt: skip
class Quantize:
    """Round a whole tensor.

    Values on the grid of a format; infinity or saturation at the end.
    """

    tolerance = "exact"
    formats = {
        "fp16": (5, 10, 65504.0, "inf"),
        "bf16": (8, 7, (2 - 2.0**-7) * 2.0**127, "inf"),
        "e5m2": (5, 2, 57344.0, "inf"),
        "e4m3fn": (4, 3, 448.0, "saturate"),
        "e3m2": (3, 2, 28.0, "saturate"),
        "e2m1": (2, 1, 6.0, "saturate"),
    }

    def cases(self, stream):
        cases = []
        for name, (exponent_bits, mantissa_bits, largest, _) in self.formats.items():
            full, low, top = 2**mantissa_bits, 1 - bias_of(exponent_bits), math.frexp(largest)[1] - 1
            values = []
            for sign in (1, -1, 1, -1):
                exponent, steps = stream.integer(low, top - 1), stream.integer(full, 2 * full - 1)
                values.append(sign * in_gaps(steps + stream.integer(1, 255) / 256, exponent, mantissa_bits))
            for sign in (1, -1):  # ties above an even and an odd number; subnormal ones; the smallest that survives
                even = full + 2 * stream.integer(0, full // 2 - 1)
                inside = stream.integer(low, top - 1)
                values += [sign * in_gaps(even + tie, inside, mantissa_bits) for tie in (0.5, 1.5)]
                tiny = (0.5, 0.625, stream.integer(1, full - 1) + 0.75)
                values += [sign * in_gaps(part, low, mantissa_bits) for part in tiny]
            gap = in_gaps(1, top, mantissa_bits)
            values += [largest + 0.25 * gap, -largest - 0.25 * gap, math.inf, -math.inf, math.nan, 0.0]
            if name != "bf16":  # twice its largest number is beyond float32
                values += [2 * largest, -2 * largest]
            cases.append({"format": name, "x": torch.tensor(values, dtype=torch.float32).reshape(2, -1)})
        return cases

    def run(self, answer, case):
        return answer(case["x"].clone(), *self.formats[case["format"]])

    def reduce(self, case, raw):
        return raw + 0.0 if isinstance(raw, torch.Tensor) else raw  # -0.0 + 0.0 is 0.0: its sign is not judged

    def describe(self, case):
        exponent_bits, mantissa_bits, largest, overflow = self.formats[case["format"]]
        return f'quantize(x, {exponent_bits}, {mantissa_bits}, largest={largest!r}, overflow="{overflow}")'


@exercise("01.positions", answer="positions", points=1, minutes=6, difficulty=1, forbids=ANSWER_KEY, settles=("R02",))
class Positions:
    """Positions that repeat.

    Token numbers from a mask in any dtype, judged by how many of them differ.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for dtype in ("bfloat16", "float16", "bfloat16", "float32", "bool", "int64"):
            rows = []
            for left in (0, stream.integer(20, 90)):  # padding, tokens, padding, tokens, padding
                first, gap = stream.integer(300, 900), stream.integer(1, 40)
                second = stream.integer(1500, 1700)
                rows.append([left, first, gap, second, 2800 - left - first - gap - second])
            cases.append({"dtype": dtype, "runs": rows})
        return cases

    def mask(self, case):
        """Bool mask of shape (2, 2800)."""
        padding_first = torch.tensor([False, True, False, True, False])
        return torch.stack([padding_first.repeat_interleave(torch.tensor(runs)) for runs in case["runs"]])

    def run(self, answer, case):
        return answer(self.mask(case).to(getattr(torch, case["dtype"])))

    def reduce(self, case, raw):
        mask = self.mask(case)
        demand_form(raw, mask.long())
        rows = {}
        for row in range(2):
            tokens = raw[row, mask[row]]
            rows[f"row {row}: distinct positions"] = tokens.unique().numel()
            rows[f"row {row}: every 300th position"] = tokens[::300].tolist()
            rows[f"row {row}: sum"] = tokens.sum().item()
            rows[f"row {row}: sum at padding"] = raw[row, ~mask[row]].sum().item()
        return rows

    def describe(self, case):
        return f"positions(mask) with a {case['dtype']} mask of shape (2, 2800)"


@exercise(
    "01.mask_scores", answer="mask_scores", points=1, minutes=6, difficulty=1,
    forbids=ANSWER_KEY, settles=("R04",),
)  # fmt: skip
class MaskScores:
    """A mask for every dtype.

    torch.finfo is the intended tool.
    """

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        for dtype in ("float16", "bfloat16", "float32", "float64", "float16", "bfloat16"):
            scores = stream.integers(-64, 64, 12)
            hidden = [bool(stream.bits(1)) for _ in range(6)] + [True, False] + [True] * 4  # the last row is hidden
            cases.append({"dtype": dtype, "scores": list(scores), "hidden": hidden})
        return cases

    def scores(self, case):
        """Tensor of shape (3, 4) in the dtype of the case."""
        return torch.tensor(case["scores"]).reshape(3, 4).to(getattr(torch, case["dtype"]))

    def run(self, answer, case):
        scores = self.scores(case)
        result = answer(scores, torch.tensor(case["hidden"]).reshape(3, 4))
        return {"result": result, "scores": scores}

    def reduce(self, case, raw):
        return {
            "result": raw["result"],
            "the caller's scores changed": not torch.equal(raw["scores"], self.scores(case)),
        }

    def describe(self, case):
        return f"mask_scores(scores, hidden) in {case['dtype']}"


@exercise(
    "01.choose_format", answer="choose_format", points=2, minutes=12, difficulty=2,
    forbids=ANSWER_KEY, settles=("C08", "C58"),
)  # fmt: skip
class ChooseFormat:
    """Choose the format.

    Range at both ends and precision, turned into a decision.
    """

    tolerance = "exact"
    # largest and smallest as powers of two, step as a power of two; clear of every format's limits
    situations = (
        ((2, 6), (-4, -1), (-2.8, -2.3)),  # e4m3fn
        ((10, 13), (-11, -5), (-1.8, -1.2)),  # e5m2
        ((2, 6), (-11, -8), (-1.8, -1.2)),  # e5m2: too small for e4m3fn
        ((3, 13), (-11, -2), (-9.8, -9.2)),  # fp16
        ((3, 13), (-11, -2), (-6.5, -5.5)),  # fp16 and bf16: the tie
        ((2, 10), (-21, -17), (-6.5, -5.5)),  # bf16: only a subnormal number in fp16
        ((2, 10), (-90, -40), (-6.5, -5.5)),  # bf16: gradients
        ((18, 60), (-8, -2), (-6.5, -5.5)),  # bf16: beyond fp16
        ((3, 9), (-20, -17), (-20, -15)),  # fp32
        ((150, 400), (-20, 0), (-20, -3)),  # fp64
        ((2, 10), (-10, -2), (-70, -60)),  # none
    )

    # exponent bits, mantissa bits and largest number of formats whose limits are met exactly, then missed one by one
    limits = ((4, 3, 448.0), (5, 2, 57344.0), (5, 10, 65504.0))

    def cases(self, stream):
        def power(bounds):
            low, high = (round(16 * bound) for bound in bounds)
            return float(f"{2.0 ** (stream.integer(low, high) / 16):.3g}")

        names = ("largest", "smallest", "step")
        cases = [{name: power(bounds) for name, bounds in zip(names, row, strict=True)} for row in self.situations]
        for exponent_bits, mantissa_bits, largest in self.limits:
            exact = {"largest": largest, "smallest": 2.0 ** (1 - bias_of(exponent_bits)), "step": 2.0**-mantissa_bits}
            cases += [exact, exact | {"largest": largest + 1}]
            cases += [exact | {name: 0.75 * exact[name]} for name in ("smallest", "step")]
        return cases

    def run(self, answer, case):
        return answer(case["largest"], case["smallest"], case["step"])

    def describe(self, case):
        return f"choose_format(largest={case['largest']!r}, smallest={case['smallest']!r}, step={case['step']!r})"
