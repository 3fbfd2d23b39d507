"""Lab 02: the shared rules, and its solutions against float64, torch and enumeration on other data."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.labs.common import LabTests, lab

STEM = "02_where_precision_is_lost"
HALVES = (torch.float16, torch.bfloat16)


class TestLab02(LabTests):
    stem = STEM


@functools.cache
def answer(name):
    return lab(STEM).answer(f"02.{name}")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", [1, 17, 4096])
def test_dot_agrees_with_float64(n, dtype):
    x, y = (normal(n, seed=seed).abs().to(dtype) for seed in (1, 2))
    got = answer("dot")(x, y)
    assert (got.dtype, got.shape) == (torch.float32, ())
    torch.testing.assert_close(got.double(), (x.double() * y.double()).sum(), rtol=n * 2.0**-24, atol=0)


def test_dot_of_large_products_that_cancel():
    x, y = torch.tensor([300.0, -300.0, 1.0]).half(), torch.tensor([300.0, 300.0, 1.0]).half()
    assert answer("dot")(x, y) == 1


def sum_in_a_tree(values):
    """The prescribed tree, one number at a time in numpy's float16."""
    while len(values) > 1:
        pairs = [values[i] + values[i + 1] for i in range(0, len(values) - 1, 2)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


@pytest.mark.parametrize("n", [1, 2, 3, 31, 1000])
def test_pairwise_sum_agrees_with_numpy_scalars(n):
    x = normal(n, seed=n).half()
    assert answer("pairwise_sum")(x).item() == sum_in_a_tree(list(x.numpy()))


@pytest.mark.parametrize("dtype", HALVES)
def test_pairwise_sum_stays_within_its_error_bound(dtype):
    x = normal(5000, seed=3).abs().to(dtype)
    exact = sum(map(Fraction, x.tolist()))
    bound = 13 * torch.finfo(dtype).eps / 2 * 1.1  # ⌈log2 5000⌉ roundings of a positive term
    assert abs(Fraction(answer("pairwise_sum")(x).item()) / exact - 1) < bound


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float16, 10), (torch.bfloat16, 7)])
def test_an_update_is_lost_up_to_half_a_gap(dtype, bits):
    gap = 2.0**-bits
    updates = torch.tensor([0.49, 0.5, 0.51, -0.24, -0.26, 0.0]) * gap  # below 1 the gap is half as large
    lost = answer("lost_updates")(torch.ones(6).to(dtype), updates)
    assert lost.tolist() == [True, True, False, True, False, False]


def test_lost_updates_counts_what_a_training_step_loses():
    weights, updates = normal(1000, seed=4).bfloat16(), 1e-3 * normal(1000, seed=5)
    after = weights.clone().add_(updates)
    assert torch.equal(answer("lost_updates")(weights, updates), after == weights)


def test_master_sgd_follows_torch_sgd_in_float32():
    start, gradients = normal(50, seed=6).bfloat16(), (1e-2 * normal(300, 50, seed=7)).bfloat16()
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.float())
    mine, reference = answer("master_sgd")([ours], lr=0.01), torch.optim.SGD([theirs], lr=0.01)
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.float()
        mine.step()
        reference.step()
    torch.testing.assert_close(mine.master[0], theirs.detach(), rtol=0, atol=300 * 2.0**-23)
    assert torch.equal(ours.detach(), mine.master[0].bfloat16())


def test_master_sgd_saves_the_updates_that_bfloat16_loses():
    weight = torch.nn.Parameter(torch.ones(3).bfloat16())
    weight.grad = torch.ones(3).bfloat16()
    optimizer = answer("master_sgd")([weight], lr=1e-4)
    for _ in range(1000):
        optimizer.step()
    assert weight.dtype == torch.bfloat16
    torch.testing.assert_close(weight.detach().float(), torch.full((3,), 0.9), rtol=0, atol=2.0**-8)


def neighbors(x):
    """The bfloat16 numbers next to x, first the one toward zero; twice x where bfloat16 holds it."""
    nearest = x.bfloat16().float()
    step = torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent - 8)
    toward = torch.where(nearest.abs() <= x.abs(), nearest, nearest - step * x.sign())
    return toward, torch.where(toward == x, x, toward + step * x.sign())


@pytest.mark.parametrize("exponent", [-30, 0, 40])
def test_stochastic_rounding_is_unbiased_within_5_sigma(exponent):
    x = (normal(200, seed=8) * 2.0**exponent)[:, None].expand(200, 20_000)
    draws = torch.randint(0, 2**16, x.shape, generator=torch.Generator().manual_seed(9), dtype=torch.int32)
    got = answer("stochastic_round")(x.contiguous(), draws)
    assert got.dtype == torch.bfloat16
    low, high = neighbors(x)
    assert ((got.float() == low) | (got.float() == high)).all()
    error = (got.double() - x.double()).mean(dim=1)
    position = ((x - low) / (high - low)).double()[:, 0]
    sigma = (high - low).double()[:, 0].abs() * (position * (1 - position) / x.shape[1]).sqrt()
    assert (error.abs() < 5 * sigma).all()


@pytest.mark.parametrize("draw", [0, 1, 32768, 65535])
def test_stochastic_rounding_keeps_every_bfloat16_number(draw):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    x = x[x.isfinite()]
    got = answer("stochastic_round")(x.float(), torch.full(x.shape, draw, dtype=torch.int32))
    assert torch.equal(got.view(torch.int16), x.view(torch.int16))


def test_ema_follows_float64_where_a_plain_one_stands_still():
    start, target, decay = normal(100, seed=10).bfloat16(), normal(100, seed=11), 0.999
    average, lost, plain, exact = start, torch.zeros_like(start), start, start.double()
    for _ in range(2000):
        average, lost = answer("ema_step")(average, lost, target, decay)
        plain = (plain.float() + (1 - decay) * (target - plain.float())).bfloat16()
        exact = exact + (1 - decay) * (target.double() - exact)
    error, plain_error = ((x.double() - exact).abs().max().item() for x in (average, plain))
    assert error < 0.02 < 1 < plain_error


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_fate_agrees_with_finfo_at_the_limits(dtype):
    info, fate = torch.finfo(dtype), answer("fate")
    smallest = info.tiny * info.eps
    values = {info.max: "fine", info.max * 1.5: "infinite", info.tiny: "fine", info.tiny / 2: "subnormal"}
    values |= {smallest: "subnormal", smallest / 4: "zero"}
    for sign in (1, -1):
        assert {value: fate(sign * value, dtype) for value in values} == values


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", [1e-3, 1, 30, 5000])
def test_softmax_agrees_with_float64(dtype, scale):
    scores, hidden = (scale * normal(200, 50, seed=12)).to(dtype), normal(200, 50, seed=13) > 0.3
    got = answer("masked_softmax")(scores, hidden)
    assert got.dtype == dtype
    wanted = scores.double().masked_fill(hidden, -math.inf).softmax(dim=-1)
    torch.testing.assert_close(got.double(), wanted, rtol=torch.finfo(dtype).eps, atol=2.0**-24)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_softmax_of_hidden_rows_and_large_scores(dtype):
    scores = torch.tensor([[5e4, 5e4, -5e4], [-5e4, -5e4, 6e4], [1.0, 2.0, 3.0]]).to(dtype)
    hidden = torch.tensor([[False] * 3, [False, False, True], [True] * 3])
    wanted = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]).to(dtype)
    assert torch.equal(answer("masked_softmax")(scores, hidden), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("mean", "spread"), [(0, 1), (0, 1e-4), (300, 200), (30_000, 100), (0, 9000)])
def test_variance_agrees_with_float64(dtype, mean, spread):
    x = (mean + spread * normal(20, 1000, seed=14)).to(dtype)
    got = answer("variance")(x)
    assert (got.dtype, got.shape) == (torch.float32, (20,))
    np.testing.assert_allclose(got.numpy(), x.double().numpy().var(axis=1), rtol=2e-5)


def test_overflowing_agrees_with_the_outputs_of_an_ordinary_model():
    torch.manual_seed(15)
    inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), inner, torch.nn.Linear(8, 2))
    with torch.no_grad():
        inner[0].weight *= 1e6
        inner[2].weight *= 1e-6
    x = normal(16, 4, seed=16)
    first = model[0](x)
    outputs = {"0": first, "1.0": inner[0](first), "1.1": inner[:2](first), "1.2": inner(first), "2": model(x)}
    wanted = [name for name, output in outputs.items() if output.half().isinf().any()]
    assert wanted == ["1.0", "1.1"]
    assert answer("overflowing")(model, x) == wanted
    assert not any(module._forward_hooks for module in model.modules())


def draws_below_the_lower_half_go_up(x, draws):
    codes = x.view(torch.int32)
    up = draws < (codes & 0xFFFF)
    return ((codes & -65536) + 65536 * up.int()).view(torch.float32).bfloat16()


def running_sum_first(average, lost, weights, decay):
    exact = average.float() + lost.float() + (1 - decay) * (weights - average)
    return exact.bfloat16(), (exact - exact.bfloat16().float()).bfloat16()


OTHER_RIGHT_ANSWERS = {
    "dot": lambda x, y: x.float() @ y.float(),
    "lost_updates": lambda weights, updates: (weights.clone().add_(updates) == weights) & updates.bool(),
    "stochastic_round": draws_below_the_lower_half_go_up,
    "ema_step": running_sum_first,
    "masked_softmax": lambda scores, hidden: (
        scores.float().masked_fill(hidden, -math.inf).softmax(-1).nan_to_num().to(scores.dtype)
    ),
    "variance": lambda x: x.float().var(dim=-1, correction=0),
}


@pytest.mark.parametrize("name", OTHER_RIGHT_ANSWERS)
def test_other_right_answers_pass_too(name):
    assert lab(STEM).verdict(f"02.{name}", OTHER_RIGHT_ANSWERS[name]).status == "passed"


def test_random_numbers_of_ones_own_do_not_pass_for_the_draws():
    def own_draws(x, draws):
        own = torch.randint(0, 2**16, x.shape, dtype=torch.int32)
        return draws_below_the_lower_half_go_up(x, own)

    assert lab(STEM).verdict("02.stochastic_round", own_draws).status == "failed"
