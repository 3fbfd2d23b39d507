"""Lab 08: data parallel and sharded steps on simulated ranks; bytes, factors and times on paper.

Ranks are entries of lists (see ranks); loops are judged by how far plain SGD moved the weights of every rank.
"""

import torch

from ampedu.exercises import exercise
from ampedu.exercises.casting import restored
from ampedu.exercises.clinic import digits, signed
from ampedu.exercises.plain import NotPlain
from ampedu.exercises.ranks import Group, Ranks, Replicas, case, in_words

MOVED = {"rtol": 2e-3, "atol": 1e-3}
FINE = {"rtol": 1e-4, "atol": 1e-4}
RATE = 2.0**-5
SECONDS = 30.0  # the first optimizer of a process loads much of torch
KEY = ("ampedu.distributed",)
TORCHS = ("torch.distributed", "torch.nn.parallel.DistributedDataParallel")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
STATE = {
    "weights": "DDP: after every step they are equal on all ranks",
    "optimizer state": "DDP: equal gradients and equal steps make equal moments",
    "scaler state": "every rank has one; all of them see the same reduced gradients",
    "scheduler state": "it counts steps, and all ranks take the same ones",
    "epoch": "the sampler shuffles by it and by a seed, and takes each rank's part out of the same order",
    "random state": "dropout draws other masks on each rank",
    "shuffle buffer": "each rank reads its own part of a stream, and holds other examples in memory",
    "error feedback": "what rounding lost in the messages of one rank, to be added to its next ones",
    "weight shard": "FSDP2: every rank holds other rows of the weights",
    "gradients": "the checkpoint is written after the step and before the next backward",
    "autocast copies": "float16 copies of the weights, made in the forward pass and dropped with the region",
    "buckets": "DDP's buffers for messages; filled anew by every backward",
}


@exercise("08.ddp_step", answer="ddp_step", points=3, minutes=15, difficulty=2, seconds=SECONDS, forbids=KEY,
          equivalents=TORCHS, settles=("C45",))  # fmt: skip
class DdpStep:
    """The step of DDP by hand."""

    tolerance = {"moved": MOVED}

    def cases(self, stream):
        kinds = [(2, 2, (), {}), (4, 1, (), {"interval": 1}), (2, 2, ((1, 1),), {}), (3, 1, ((0, 2),), {"interval": 1}),
                 (2, 1, (), {"tiny": True}), (3, 2, ((0, 0), (1, 2)), {"tiny": True, "interval": 1})]  # fmt: skip
        return [case(stream, [[rows] * size] * 3, infinite=bad, **more) for size, rows, bad, more in kinds]

    def run(self, answer, case):
        ranks = Ranks(case)
        with restored():
            for batches in ranks.batches():
                answer(ranks.models, batches, ranks.loss_fn, ranks.optimizers, ranks.scalers, ranks.group)
        return {**ranks.observed(), "group used": bool(ranks.group.log)}

    def describe(self, case):
        return f"{in_words(case)}, one call for each batch"


@exercise("08.token_step", answer="token_step", points=3, minutes=15, difficulty=2, seconds=SECONDS, forbids=KEY,
          equivalents=TORCHS)  # fmt: skip
class TokenStep:
    """A mean over all tokens."""

    tolerance = {"moved": MOVED}

    def cases(self, stream):
        kinds = [[1, 3], [2, 2], [4, 1, 1], [3, 0], [1, 2, 3, 2], [0, 1, 2]]
        return [case(stream, [sizes, sizes[::-1]], infinite=((1, 1),) if i == 4 else ())
                for i, sizes in enumerate(kinds)]  # fmt: skip

    def run(self, answer, case):
        ranks = Ranks(case)
        replicas = Replicas(ranks.models, ranks.group)

        def loss_sum(outputs, targets):
            return torch.nn.functional.mse_loss(outputs, targets, reduction="sum")

        with restored():
            for batches in ranks.batches():
                answer(replicas, batches, loss_sum, ranks.optimizers, ranks.scalers, ranks.group)
        # Backward asks once per batch.
        return {**ranks.observed(), "group used": len(ranks.group.log) > len(case["batches"])}

    def describe(self, case):
        return f"{in_words(case)}, one call for each batch"


@exercise("08.accumulate", answer="accumulate", points=4, minutes=20, difficulty=3, seconds=SECONDS, forbids=KEY,
          equivalents=TORCHS)  # fmt: skip
class Accumulate:
    """Accumulate, and send once."""

    tolerance = {"moved": MOVED}

    def cases(self, stream):
        kinds = [(2, 2, 4, 64.0, (), 1000), (2, 3, 4, 64.0, (), 1000), (3, 2, 3, 1.0, (), 1000),
                 (2, 2, 4, 0.5, ((0, 1),), 1), (2, 4, 6, 1.0, ((1, 0),), 1000), (2, 3, 5, 0.5, (), 1)]  # fmt: skip
        return [case(stream, [[1] * size] * count, infinite=bad, interval=interval, steps=steps, max_norm=norm)
                for size, steps, count, norm, bad, interval in kinds]  # fmt: skip

    def run(self, answer, case):
        ranks = Ranks(case)
        given = Replicas(ranks.models, ranks.group), ranks.batches(), ranks.loss_fn, ranks.optimizers, ranks.scalers
        with restored():
            answer(*given, case["steps"], case["max_norm"])
        return {**ranks.observed(), "all-reduces": len(ranks.group.log)}

    def describe(self, case):
        return f"{in_words(case)}, steps={case['steps']}, max_norm={case['max_norm']:g}"


def shards_of(case):
    """(weights, scaled gradients), a float32 tensor per rank; infinities and NaN where the case wants them."""
    weights = [torch.tensor([row[0] for row in rows], dtype=torch.float32) / 4 for rows in case["shards"]]
    gradients = [torch.tensor([row[1] for row in rows], dtype=torch.float32) / 4 * case["scale"]
                 for rows in case["shards"]]  # fmt: skip
    for rank, index, value in case.get("bad", ()):
        gradients[rank][index] = float(value)
    return weights, gradients


def shards(stream, sizes, scale, **more):
    """A case of [weight, true gradient] pairs in quarters, one list per rank with sizes[rank] of them."""
    rows = [[[signed(stream, 1, 16), signed(stream, 2, 40)] for _ in range(size)] for size in sizes]
    return {"shards": rows, "scale": float(scale), **more}


def shards_in_words(case):
    """The shards, the scale, and where an infinity or a NaN is."""
    text = f"{len(case['shards'])} ranks with shards of {', '.join(str(len(rows)) for rows in case['shards'])}"
    bad = " and ".join(f"{value} on rank {rank}" for rank, _, value in case.get("bad", ()))
    return f"{text} elements, scale {case['scale']:g}" + (f", {bad}" if bad else "")


@exercise("08.sharded_step", answer="sharded_step", points=3, minutes=12, difficulty=2, forbids=KEY,
          equivalents=TORCHS[:1], settles=("C46", "R82", "R83"))  # fmt: skip
class ShardedStep:
    """Skip together."""

    tolerance = {"moved": FINE}

    def cases(self, stream):
        kinds = [([3, 2], ()), ([1, 2], ((0, 0, "inf"),)), ([2, 2, 0], ((1, 0, "-inf"),)), ([2, 2], ((1, 1, "nan"),)),
                 ([2, 1, 0, 0], ()), ([2, 2], ((0, 1, "inf"), (1, 0, "inf"))), ([1, 2, 2], ((2, 1, "nan"),))]
        return [shards(stream, sizes, 2.0 ** (8 + 2 * i), bad=[list(place) for place in bad])
                for i, (sizes, bad) in enumerate(kinds)]  # fmt: skip

    def run(self, answer, case):
        weights, gradients = shards_of(case)
        before = [weight.clone() for weight in weights]
        group = Group(len(weights))
        scales = answer(weights, gradients, case["scale"], RATE, group)
        moved = [digits((new - old).double() / RATE) for new, old in zip(weights, before, strict=True)]
        return {"moved": moved, "scales": scales, "group used": bool(group.log)}

    def reduce(self, case, raw):
        if type(raw["scales"]) is not list or not all(type(s) in (int, float) for s in raw["scales"]):
            raise NotPlain("the answer does not return a list of numbers, the scale of every rank")
        return {**raw, "scales": [float(s) for s in raw["scales"]]}

    def describe(self, case):
        return shards_in_words(case)


@exercise("08.clip_shards", answer="clip_shards", points=2, minutes=10, difficulty=2, forbids=KEY,
          equivalents=TORCHS[:1])  # fmt: skip
class ClipShards:
    """One norm for all shards."""

    tolerance = {"gradients": {"rtol": 1e-4, "atol": 1e-5}, "norms": {"rtol": 1e-4, "atol": 1e-5}}

    def cases(self, stream):
        kinds = [([2, 2], 1.0), ([3, 2], 4096.0), ([2, 2, 0], 0.5), ([1, 1, 2], 2.0), ([1, 1, 2, 1], 0.25),
                 ([3, 1], 4096.0)]  # fmt: skip
        return [shards(stream, sizes, 2.0 ** (7 + i), max_norm=norm) for i, (sizes, norm) in enumerate(kinds)]

    def run(self, answer, case):
        _, gradients = shards_of(case)
        group = Group(len(gradients))
        norms = answer(gradients, case["scale"], case["max_norm"], group)
        return {"norms": norms, "gradients": [digits(g) for g in gradients], "group used": bool(group.log)}

    def reduce(self, case, raw):
        if type(raw["norms"]) is not list or not all(type(norm) in (int, float) for norm in raw["norms"]):
            raise NotPlain("the answer does not return a list of numbers, the norm that every rank found")
        return {**raw, "norms": digits(raw["norms"])}

    def describe(self, case):
        return f"{shards_in_words(case)}, max_norm={case['max_norm']:g}"


@exercise("08.ring", answer="ring_all_reduce", points=4, minutes=20, difficulty=3, forbids=KEY,
          equivalents=TORCHS[:1])  # fmt: skip
class Ring:
    """All-reduce around a ring."""

    tolerance = "exact"

    def cases(self, stream):
        kinds = [(2, 4, "float32"), (3, 6, "float32"), (4, 4, "float16"), (2, 6, "float16"), (5, 5, "float32"),
                 (1, 2, "float32")]  # fmt: skip
        return [{"dtype": dtype, "ranks": [[signed(stream, 1, 99) for _ in range(length)] for _ in range(size)]}
                for size, length, dtype in kinds]  # fmt: skip

    def run(self, answer, case):
        tensors = [torch.tensor(row, dtype=DTYPES[case["dtype"]]) for row in case["ranks"]]
        group = Group(len(tensors))
        answer(tensors, group)
        sums = [t.tolist() for t in tensors]
        return {"sums": sums, "bytes sent": group.sent, "rounds": group.rounds, "all_reduce": bool(group.log)}

    def describe(self, case):
        return f"{len(case['ranks'])} ranks with {len(case['ranks'][0])} elements each, {case['dtype']}"


@exercise("08.bytes", answer="step_bytes", points=3, minutes=15, difficulty=2, forbids=KEY, equivalents=TORCHS[:1],
          settles=("C04", "R85"))  # fmt: skip
class Bytes:
    """The ledger of a step."""

    tolerance = "exact"

    def cases(self, stream):
        kinds = [("ddp", None, None), ("ddp+amp", None, None), ("ddp+fp16 hook", None, None),
                 ("fsdp2", "bfloat16", "float32"), ("fsdp2", "bfloat16", None), ("fsdp2", None, None),
                 ("fsdp2", "float16", "bfloat16"), ("ddp+amp", None, None)]  # fmt: skip
        cases = []
        for i, (way, param_dtype, reduce_dtype) in enumerate(kinds):
            parameters = []
            for j in range(3 + i % 2):
                shape = [stream.integer(2, 9) * 64 for _ in range(1 + (i + j) % 2)]
                parameters.append([shape, "bfloat16" if i == 7 and j == 1 else "float32", j != 1 + i % 2])
            cases.append({"parameters": parameters, "way": way, "dtypes": [param_dtype, reduce_dtype]})
        return cases

    def run(self, answer, case):
        parameters = [
            torch.nn.Parameter(torch.empty(shape, dtype=DTYPES[dtype], device="meta"), requires_grad=trained)
            for shape, dtype, trained in case["parameters"]
        ]
        return answer(parameters, case["way"], *(dtype and DTYPES[dtype] for dtype in case["dtypes"]))

    def describe(self, case):
        shapes = [f"{'×'.join(map(str, shape))} {dtype}{'' if trained else ' frozen'}"
                  for shape, dtype, trained in case["parameters"]]  # fmt: skip
        text = f"{case['way']} with {', '.join(shapes)}"
        if case["way"] == "fsdp2":
            text += f", param_dtype={case['dtypes'][0]}, reduce_dtype={case['dtypes'][1]}"
        return text


@exercise("08.compressed", answer="compressed_mean", points=3, minutes=12, difficulty=2, forbids=KEY,
          equivalents=TORCHS[:1], settles=("R87",))  # fmt: skip
class Compressed:
    """Half the bytes."""

    tolerance = {"means": {"rtol": 1e-3, "atol": 1e-3}}

    def cases(self, stream):
        # (ranks, factor, exponent of the unit, low, high): values are low to high units.
        kinds = [(2, 2, -6, 1, 64), (4, 2, -6, 1, 64), (16, 16, 4, 700, 900), (16, 1, -24, 3, 40), (4, 1, -24, 3, 40),
                 (32, 32, 8, 1040, 1500)]  # fmt: skip
        cases = []
        for i, (size, factor, exponent, low, high) in enumerate(kinds):
            rows = [[signed(stream, low, high) for _ in range(2)] for _ in range(size)]
            if i == 2:  # all of one sign: without the factor the sum is too large
                rows = [[abs(value) for value in row] for row in rows]
            if i == 5:  # one rank alone is too large, the sum is not
                rows[1:] = [[signed(stream, 4, 16) for _ in range(2)] for _ in rows[1:]]
            cases.append({"ranks": rows, "exponent": exponent, "factor": factor})
        return cases

    def run(self, answer, case):
        unit = 2.0 ** case["exponent"]
        gradients = [torch.tensor(row, dtype=torch.float32) * unit for row in case["ranks"]]
        group = Group(len(gradients))
        answer(gradients, case["factor"], group)
        means = [digits(g.double() / unit) for g in gradients]
        messages = [f"{op} of {count} {dtype}" for op, dtype, count in group.log]
        same = all(str(mean) == str(means[0]) for mean in means)
        return {"means": means[0], "equal on all ranks": same, "messages": messages}

    def describe(self, case):
        largest = max(abs(value) for row in case["ranks"] for value in row) * 2.0 ** case["exponent"]
        text = f"{len(case['ranks'])} ranks, factor={case['factor']}, gradients up to {largest:.3g}"
        return f"{text}; means in units of 2**{case['exponent']}"


@exercise("08.factor", answer="predivide_factor", points=2, minutes=10, difficulty=2, forbids=KEY)
class Factor:
    """Between overflow and zero."""

    tolerance = "exact"

    def cases(self, stream):
        cases = []
        # (ranks, exponent of the right factor, distance of the smallest message from 2**-14 as an exponent)
        for size, right, above in [(8, 2, 6), (64, 5, 3), (16, 0, 4), (8, 3, 2), (64, 2, 8), (256, 6, 2), (16, 3, -3),
                                   (8, 5, 6), (32, 3, 2), (16, 3, -13)]:  # fmt: skip
            largest = 65504 * 2.0**right / size * stream.integer(38, 60) / 64
            smallest = 2.0 ** (-14 + right + above) * stream.integer(66, 90) / 64
            cases.append({"smallest": min(smallest, largest / 4), "largest": largest, "ranks": size})
        return cases

    def run(self, answer, case):
        return answer(case["smallest"], case["largest"], case["ranks"])

    def describe(self, case):
        return f"predivide_factor({case['smallest']:.4g}, {case['largest']:.6g}, {case['ranks']})"


@exercise("08.scaling", answer="scaling", points=2, minutes=12, difficulty=1, forbids=KEY)
class Scaling:
    """A thousand GPUs on paper."""

    tolerance = {"seconds": {"rtol": 1e-6, "atol": 1e-9}, "efficiency": {"rtol": 1e-6, "atol": 1e-9}}

    def cases(self, stream):
        # (ranks, bytes, compute in units of the traffic, overlap)
        kinds = [(8, 4, 0.5, 0.0), (8, 2, 1.0, 0.5), (1, 4, 1.0, 0.5), (1024, 4, 0.25, 0.25), (64, 2, 4.0, 0.75),
                 (2, 4, 1.0, 0.25), (256, 4, 2.0, 0.0)]  # fmt: skip
        cases = []
        for ranks, size, share, overlap in kinds:
            params, gbit = stream.integer(64, 4096) * 2**20, stream.choice([25, 100, 200, 400])
            compute = share * params * size * 8 / (gbit * 1e9) * stream.integer(32, 63) / 32
            cases.append({"params": params, "grad_bytes": size, "ranks": ranks, "gbit": gbit,
                          "latency": stream.integer(5, 20) * 1e-6, "compute": compute, "overlap": overlap})  # fmt: skip
        return cases

    def run(self, answer, case):
        return answer(*case.values())

    def reduce(self, case, raw):
        if type(raw) is not tuple or len(raw) != 2 or not all(type(number) in (int, float) for number in raw):
            raise NotPlain("the answer is not a pair of numbers: seconds, efficiency")
        # Eight digits: the file of expected data is small.
        return {name: float(f"{number:.8g}") for name, number in zip(("seconds", "efficiency"), raw, strict=True)}

    def describe(self, case):
        return f"scaling({', '.join(f'{name}={value:.6g}' for name, value in case.items())})"


@exercise("08.checkpoint", answer="checkpoint_plan", points=2, minutes=8, difficulty=1)
class Checkpoint:
    """What goes into the checkpoint?

    A choice, so the cases are the same for every secret: one for each kind of state.
    """

    tolerance = "exact"

    def cases(self, stream):
        return [{"state": name} for name in STATE]

    def run(self, answer, case):
        return answer()

    def reduce(self, case, raw):
        if type(raw) is not dict or not all(type(word) is str for word in raw.values()):
            raise NotPlain('the answer is not a dict of words such as {"weights": "once"}')
        return raw.get(case["state"], "not named").strip().lower()

    def describe(self, case):
        return f"{case['state']}: {STATE[case['state']]}"
