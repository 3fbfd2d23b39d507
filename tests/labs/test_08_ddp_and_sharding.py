"""Lab 08: the shared rules; its steps against float64 training in one process, torch's functions, and real ranks."""

import functools
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampedu.distributed import run_distributed, step_time, wire_bytes
from ampedu.exercises import clinic, ranks
from ampedu.exercises.ex08_ddp_and_sharding import DTYPES, RATE, STATE, shards_of
from tests.labs.common import LabTests, lab

STEM = "08_ddp_and_sharding"
SECRETS = [b"public", b"x", b"y", b"z"]
TRAINED = ("ddp_step", "token_step", "accumulate")
REAL = Path(__file__).with_name("ranks08.py")


class TestLab08(LabTests):
    stem = STEM


@functools.cache
def answer(name):
    return lab(STEM).answer(f"08.{name}")


def spec(name):
    return lab(STEM).exercises[f"08.{name}"]


def cases(name):
    return [case for secret in SECRETS for case in spec(name).cases(secret)]


# One process, one model, float64, weights updated by hand: the mean over all rows of all ranks of a window.


def in_one_process(case, steps=1, max_norm=math.inf):
    weight = torch.tensor([case["weights"]], dtype=torch.float64) / 4
    start, scale, good = weight.clone(), 1.0, 0
    for first in range(0, len(case["batches"]), steps):
        window = [row for batch in case["batches"][first : first + steps] for rows in batch for row in rows]
        if any(row[2] == clinic.HUGE for row in window):
            scale, good = scale / 2, 0
            continue
        rows = torch.tensor(window, dtype=torch.float64) / 4
        errors = rows[:, :2] @ weight.T - rows[:, 2:]
        gradient = 2 / len(rows) * errors.T @ rows[:, :2]
        weight = weight - clinic.LEARNING_RATE * gradient * min(1.0, max_norm / gradient.norm().item())
        good += 1
        if good == clinic.interval_of(case):
            scale, good = scale * 2, 0
    moved = ((weight - start) / clinic.LEARNING_RATE).flatten().tolist()
    size = len(case["batches"][0])
    return {"moved": [moved] * size, "scales": [scale] * size}


def expected(name, case):
    if name == "accumulate":
        windows = -(-len(case["batches"]) // case["steps"])
        return {**in_one_process(case, case["steps"], case["max_norm"]), "all-reduces": windows}
    return {**in_one_process(case), "group used": True}


@pytest.mark.parametrize("name", TRAINED)
def test_ranks_train_as_one_process_does_on_all_their_rows(name):
    for case in cases(name):
        got, want = spec(name).run(answer(name), case), expected(name, case)
        pair = torch.tensor(got.pop("moved")), torch.tensor(want.pop("moved"))
        torch.testing.assert_close(*pair, rtol=0.01, atol=0.02, msg=lambda text, case=case: f"{case}\n{text}")
        assert got == want, spec(name).describe(case)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_cases_stay_four_times_clear_of_overflow_and_underflow(name, factor, monkeypatch):
    made = ranks.scaler_of
    for case in cases(name):
        here = spec(name).run(answer(name), case)
        with monkeypatch.context() as patch:
            patch.setattr(ranks, "scaler_of", lambda case: made({**case, "start": factor}))
            there = spec(name).run(answer(name), case)
        assert there["scales"] == [factor * scale for scale in here["scales"]], "another step was skipped"
        torch.testing.assert_close(torch.tensor(there["moved"]), torch.tensor(here["moved"]), rtol=2e-3, atol=1e-2)


def test_sharded_step_and_clip_equal_torch_on_the_whole_gradient():
    for case in cases("sharded_step"):
        gradient = torch.cat(shards_of(case)[1]).double()
        finite = bool(torch.isfinite(gradient).all())
        got = spec("sharded_step").run(answer("sharded_step"), case)
        moved = torch.tensor([number for shard in got["moved"] for number in shard], dtype=torch.float64)
        want = -gradient / case["scale"] if finite else torch.zeros_like(gradient)
        torch.testing.assert_close(moved, want, rtol=1e-4, atol=1e-6)
        assert got["scales"] == [case["scale"] / (1 if finite else 2)] * len(case["shards"])
    for case in cases("clip_shards"):
        whole = torch.nn.Parameter(torch.zeros(sum(map(len, case["shards"])), dtype=torch.float64))
        whole.grad = torch.cat(shards_of(case)[1]).double() / case["scale"]
        norm = torch.nn.utils.clip_grad_norm_([whole], case["max_norm"]).item()
        got = spec("clip_shards").run(answer("clip_shards"), case)
        gradients = torch.tensor([number for shard in got["gradients"] for number in shard], dtype=torch.float64)
        torch.testing.assert_close(gradients, whole.grad, rtol=5e-5, atol=1e-6)
        assert got["norms"] == pytest.approx([norm] * len(case["shards"]), rel=1e-5)


def test_the_ring_gives_integer_sums_with_the_fewest_bytes():
    for case in cases("ring"):
        rows, n = case["ranks"], len(case["ranks"])
        got = spec("ring").run(answer("ring"), case)
        sums = [float(sum(column)) for column in zip(*rows, strict=True)]
        nbytes = len(rows[0]) * DTYPES[case["dtype"]].itemsize
        assert got == {"sums": [sums] * n, "bytes sent": [wire_bytes(nbytes, n)] * n, "rounds": 2 * (n - 1),
                     "all_reduce": False}  # fmt: skip


def test_compressed_means_equal_exact_fractions():
    for case in cases("compressed"):
        got = spec("compressed").run(answer("compressed"), case)
        means = [float(Fraction(sum(column), len(column))) for column in zip(*case["ranks"], strict=True)]
        assert got["means"] == pytest.approx(means, rel=4e-3, abs=0.3 if case["exponent"] == 8 else 1e-3)
        assert (got["messages"], got["equal on all ranks"]) == (["all_reduce of 2 float16"], True)


def test_torchs_own_fp16_hook_casts_before_it_divides():
    case = spec("compressed").cases()[5]
    largest = max(abs(value) for row in case["ranks"] for value in row) * 2.0 ** case["exponent"]
    buffer = torch.tensor([largest])
    assert buffer.half().div_(32).isinf() and (buffer / 32).half().isfinite()  # the line of default_hooks.py
    by_torch = next(mutant for mutant in lab(STEM).mutants if mutant.name == "casts_first")
    assert lab(STEM).verdict("08.compressed", by_torch.answer).difference.case == 5


def test_the_factor_keeps_the_worst_sum_and_the_smallest_message_in_range():
    found = set()
    for case in cases("factor"):
        factor = spec("factor").run(answer("factor"), case)
        found.add(factor)
        powers = [2**k for k in range(case["ranks"].bit_length()) if 2**k <= case["ranks"]]

        def overflows(f, case=case):
            return Fraction(case["largest"]) * case["ranks"] / f > 65504

        fitting = [f for f in powers if not overflows(f)]
        want = fitting[0] if fitting and case["smallest"] / fitting[0] >= 2.0**-14 else None
        assert factor == want, case
        if factor is not None:  # clear of the limits: the next factors would not do by chance
            assert torch.tensor(case["largest"] / factor).half().mul(case["ranks"]).isfinite()
            assert factor == 1 or overflows(factor / 2)
    assert None in found and len(found) > 4


def test_scaling_equals_the_formula_of_the_package():
    for case in cases("scaling"):
        want = step_time(case["params"], case["grad_bytes"], case["ranks"], case["gbit"] * 1e9 / 8, case["compute"],
                         case["overlap"], case["latency"])  # fmt: skip
        got = spec("scaling").run(answer("scaling"), case)
        assert got == pytest.approx((want.total, want.efficiency), rel=1e-9)


def test_bytes_equal_a_count_of_elements():
    sizes = {"float32": 4, "bfloat16": 2, "float16": 2}
    for case in cases("bytes"):
        gather, param, reduce = 0, *case["dtypes"]
        sent = 0
        for shape, dtype, trained in case["parameters"]:
            count = math.prod(shape)
            gather += 2 * count * sizes[param or dtype]
            wire = {"fsdp2": reduce or param or dtype, "ddp+fp16 hook": "float16"}.get(case["way"], dtype)
            sent += trained * count * sizes[wire]
        fsdp = case["way"] == "fsdp2"
        want = {"all_reduce": 0 if fsdp else sent, "all_gather": gather if fsdp else 0,
                "reduce_scatter": sent if fsdp else 0}  # fmt: skip
        assert spec("bytes").run(answer("bytes"), case) == want


def test_replicas_reduce_as_ddp_documents():
    group = ranks.Group(2)
    replicas = ranks.Replicas([clinic.linear([1, 2]), clinic.linear([1, 2])], group)
    batches = [(torch.ones(1, 2), torch.ones(1, 1)), (torch.ones(1, 2), torch.zeros(1, 1))]

    def loss_fn(outputs, targets):
        return (outputs.float() - targets).sum()

    with replicas.no_sync():
        losses = replicas.losses(batches, loss_fn)
    replicas.backward(losses)
    assert group.log == [], "the forward pass decides"
    losses = replicas.losses(batches, loss_fn)
    with replicas.no_sync():
        replicas.backward(losses)
    assert group.log == [("all_reduce", "float32", 2)]


@given(st.integers(1, 6), st.sampled_from(["sum", "max", "min"]), st.data())
def test_the_group_reduces_and_passes_as_its_words_say(size, op, data):
    rows = data.draw(st.lists(st.lists(st.integers(-50, 50), min_size=2, max_size=2), min_size=size, max_size=size))
    group, tensors = ranks.Group(size), [torch.tensor(row, dtype=torch.float32) for row in rows]
    received = group.pass_right(tensors)
    assert [t.tolist() for t in received] == [rows[rank - 1] for rank in range(size)]
    assert (group.sent, group.rounds) == ([8] * size, 1)
    group.all_reduce(tensors, op)
    function = {"sum": sum, "max": max, "min": min}[op]
    assert [t.tolist() for t in tensors] == [[function(column) for column in zip(*rows, strict=True)]] * size


@pytest.mark.parametrize(("tensors", "op", "error", "text"), [
    ([torch.ones(1)], "sum", ValueError, "got 1 tensors from 2 ranks: every rank"),
    ([torch.ones(1), torch.ones(2)], "sum", ValueError, "not alike"),
    ([torch.ones(1), torch.ones(1).half()], "sum", ValueError, "float16"),
    ([torch.ones(1), torch.ones(1)], "mean", ValueError, "'sum', 'max' or 'min'"),
    (torch.ones(2), "sum", TypeError, "a list with a tensor of every rank"),
    ([1.0, 2.0], "sum", TypeError, "a list with a tensor of every rank"),
])  # fmt: skip
def test_the_group_says_what_is_wrong(tensors, op, error, text):
    with pytest.raises(error, match=text):
        ranks.Group(2).all_reduce(tensors, op)


def flat_ddp(models, batches, loss_fn, optimizers, scalers, group):
    """One message with all gradients, divided first; unscaled before the step."""
    for model, (x, y), optimizer, scaler in zip(models, batches, optimizers, scalers, strict=True):
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss / group.size).backward()
    buckets = [torch.nn.utils.parameters_to_vector(p.grad for p in model.parameters()) for model in models]
    group.all_reduce(buckets)
    for model, bucket, optimizer, scaler in zip(models, buckets, optimizers, scalers, strict=True):
        torch.nn.utils.vector_to_parameters(bucket, [p.grad for p in model.parameters()])
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def tokens_after_unscale(replicas, batches, loss_sum, optimizers, scalers, group):
    """Sums in the losses; one division of the gradients, after the mean of DDP."""
    counts = [torch.tensor([len(x)]) for x, _ in batches]
    group.all_reduce(counts)
    for optimizer in optimizers:
        optimizer.zero_grad()
    replicas.backward([s.scale(loss) for s, loss in zip(scalers, replicas.losses(batches, loss_sum), strict=True)])
    for model, optimizer, scaler, count in zip(replicas.models, optimizers, scalers, counts, strict=True):
        scaler.unscale_(optimizer)
        for p in model.parameters():
            p.grad *= group.size / count.item()
        scaler.step(optimizer)
        scaler.update()


def skip_by_sum(weights, gradients, scale, rate, group):
    flags = [torch.tensor([int((~torch.isfinite(g)).sum())]) for g in gradients]
    group.all_reduce(flags)
    for w, g, flag in zip(weights, gradients, flags, strict=True):
        if flag.item() == 0:
            w.sub_(g / scale, alpha=rate)
    return [scale * (0.5 if flag.item() else 1) for flag in flags]


def ring_backwards(tensors, group):
    """Another schedule: rank r starts with chunk r + 1, and keeps copies."""
    n = group.size
    chunks = [list(t.chunk(n)) for t in tensors]
    held = [chunks[r][(r + 1) % n].clone() for r in range(n)]
    for step in range(n - 1):
        held = group.pass_right(held)
        held = [held[r] + chunks[r][(r - step) % n] for r in range(n)]
    for r in range(n):
        chunks[r][(r + 2) % n].copy_(held[r])
    for step in range(n - 1):
        held = group.pass_right(held)
        for r in range(n):
            chunks[r][(r + 1 - step) % n].copy_(held[r])


OTHER_RIGHT_ANSWERS = {
    "ddp_step": flat_ddp,
    "token_step": tokens_after_unscale,
    "sharded_step": skip_by_sum,
    "ring": ring_backwards,
    "factor": lambda smallest, largest, ranks: next(
        (f if smallest / f >= 2**-14 else None for f in (1 << k for k in range(ranks.bit_length()))
         if f <= ranks and largest * (ranks / f) <= 65504), None),
    "checkpoint": lambda: {key: value.upper() for key, value in reversed(answer("checkpoint")().items())},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_RIGHT_ANSWERS)
def test_other_right_answers_pass_too(name):
    verdict = lab(STEM).verdict(f"08.{name}", OTHER_RIGHT_ANSWERS[name])
    assert verdict.status == "passed", (verdict.message, verdict.difference)


def test_no_single_word_passes_as_a_checkpoint_plan():
    assert set(answer("checkpoint")()) == set(STATE)
    for word in ("once", "per rank", "not at all"):
        verdict = lab(STEM).verdict("08.checkpoint", lambda word=word: dict.fromkeys(STATE, word))
        assert verdict.status == "failed"


@pytest.mark.parametrize(("name", "wrong", "text"), [
    ("sharded_step", lambda *args: 1024.0, "list of numbers"),
    ("clip_shards", lambda *args: torch.ones(2), "list of numbers"),
    ("scaling", lambda *args: 0.3, "pair of numbers"),
    ("checkpoint", lambda: {"weights": 1}, "dict of words"),
])  # fmt: skip
def test_answers_of_the_wrong_type_are_explained(name, wrong, text):
    assert text in lab(STEM).verdict(f"08.{name}", wrong).difference.got


def test_rates_and_shards_are_exact():
    assert math.log2(RATE).is_integer()
    for case in cases("sharded_step"):
        assert math.log2(case["scale"]).is_integer()


@pytest.mark.slow
def test_the_ledger_equals_what_real_ranks_send():
    from tests.labs.ranks08 import layers

    kinds = [("ddp", None, None), ("ddp+amp", None, None), ("ddp+fp16 hook", None, None), ("fsdp2", None, None),
             ("fsdp2", "bfloat16", "float32"), ("fsdp2", "bfloat16", None), ("fsdp2", "float16", "bfloat16")]
    for seen in run_distributed(f"{REAL}:ledgers", 2, "gloo", args=(kinds,), quiet=True):
        for kind, (found, dtypes) in zip(kinds, seen, strict=True):
            policy = (dtype and DTYPES[dtype] for dtype in kind[1:])
            want = answer("bytes")(list(layers().parameters()), kind[0], *policy)
            assert (found, dtypes) == (want, ["torch.float32"]), kind


@pytest.mark.slow
def test_accumulation_equals_real_ddp_with_no_sync():
    for case in spec("accumulate").cases()[:2]:
        simulated = spec("accumulate").run(answer("accumulate"), case)
        for seen in run_distributed(f"{REAL}:accumulated", 2, "gloo", args=(case,), quiet=True):
            assert seen["all-reduces"] == ["float32"] * simulated["all-reduces"]
            torch.testing.assert_close(torch.tensor(seen["moved"][0]), torch.tensor(simulated["moved"][0]))
            assert seen["scales"] == simulated["scales"][:1]


@pytest.mark.slow
def test_in_real_ddp_too_the_forward_pass_decides_whether_backward_sends():
    for seen in run_distributed(f"{REAL}:forward_decides", 2, "gloo", quiet=True):
        assert seen == [12, 0]  # bytes: two weights and a bias
