"""Landing of updates: against torch's own addition on every weight of a binade, and against the rule on paper."""

import math

import pytest
import torch

from ampedu.updates import landing_limits, update_lands

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BITS = {"bf16": 7, "fp16": 10}


def weights_of_a_binade(name):
    count = 2 ** BITS[name]
    return [1 + k / count for k in range(count)]


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("update", [1e-4, -1e-4, 2.0**-9, -(2.0**-9), 2.0**-11, 3e-3, -3e-3, 0.7, 0.0])
def test_result_is_what_torch_stores(name, update):
    # float32 holds the sum of these numbers closely enough: no sum lies within 2^-24 of a tie without being one.
    for weight in weights_of_a_binade(name)[:: max(1, BITS[name] - 7)]:
        stored = (torch.tensor(weight, dtype=torch.float64) + update).float().to(TORCH[name]).item()
        landing = update_lands(weight, update, name)
        assert landing.result == stored
        assert landing.lands == (stored != weight)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("scale", [1.0, 2.0**-13, 2.0**9])
def test_limits_hold_for_every_mantissa_and_are_reached(name, scale):
    lost, felt = landing_limits(name)
    above = felt * (1 + 2.0**-20)
    weights = [scale * weight for weight in weights_of_a_binade(name)]
    for sign in (1, -1):
        assert not any(update_lands(w, sign * lost * w, name).lands for w in weights)
        assert all(update_lands(w, sign * above * w, name).lands for w in weights)
    # Neither bound can be improved: some weight is moved just above the lower one, some is not at the upper one.
    assert any(update_lands(w, -lost * (1 + 2.0**-20) * w, name).lands for w in weights)
    assert not all(update_lands(w, felt * w, name).lands for w in weights)


def test_limits_are_those_of_the_papers():
    assert landing_limits("bf16") == (2.0**-9, 2.0**-8)
    assert landing_limits("fp16") == (2.0**-12, 2.0**-11)  # Micikevicius et al. 2017, 3.1: a factor of 2048


def test_midpoints_belong_to_the_even_neighbor():
    even, odd = update_lands(1.0, 2.0**-8, "bf16"), update_lands(1 + 2.0**-7, 2.0**-8, "bf16")
    assert (even.exact, even.high, even.lands) == (1 + 2.0**-8, 1 + 2.0**-8, False)
    assert odd.lands and odd.result == 1 + 2.0**-6


def test_below_a_power_of_two_half_the_update_is_enough():
    landing = update_lands(1.0, -3e-3, "bf16")
    assert (landing.below, landing.above) == (1 - 2.0**-8, 1 + 2.0**-7)
    assert landing.lands and not update_lands(1.0, 3e-3, "bf16").lands


def test_the_weight_is_rounded_first_and_the_move_is_told():
    landing = update_lands(0.02, -1e-4, torch.bfloat16)
    assert landing.weight == torch.tensor(0.02).bfloat16().item() == 0.02001953125
    assert landing.result - landing.weight == -(2.0**-13)
    assert landing.verdict.startswith("Lands") and "-0.0001221" in landing.verdict
    assert math.isclose(landing.ratio, 1e-4 / 0.02001953125)


def test_verdicts_of_lost_absent_and_overflowing_updates():
    assert update_lands(1.0, -1e-4, "bf16").verdict == "Lost: 0.9999 is rounded back to 1."
    assert update_lands(1.0, 0.0, "bf16").verdict.startswith("No update")
    assert update_lands(65504.0, 16.0, "fp16").verdict.startswith("Overflow")
    assert update_lands(65504.0, 15.9, "fp16").verdict.startswith("Lost")
    assert not update_lands(448.0, 100.0, "e4m3fn").lands  # saturates


def test_zero_and_subnormal_weights():
    landing = update_lands(0.0, 2.0**-25, "fp16")
    assert not landing.lands and landing.ratio == math.inf
    assert update_lands(0.0, 2.0**-24, "fp16").result == 2.0**-24
    assert update_lands(2.0**-24, 2.0**-25, "fp16").result == 2.0**-23  # a tie, and 1 is odd


def test_bad_input_is_named():
    for name in ("e8m0", "fp64"):
        with pytest.raises(ValueError, match=name):
            update_lands(1.0, 0.1, name)
        with pytest.raises(ValueError, match=name):
            landing_limits(name)
    with pytest.raises(ValueError, match="the update is nan"):
        update_lands(1.0, math.nan, "bf16")
    with pytest.raises(ValueError, match="the weight is inf"):
        update_lands(math.inf, 0.1, "bf16")
    with pytest.raises(ValueError, match="65504, the largest fp16"):
        update_lands(7e4, 0.1, "fp16")
    with pytest.raises(ValueError, match="unknown format"):
        update_lands(1.0, 0.1, "fp15")
