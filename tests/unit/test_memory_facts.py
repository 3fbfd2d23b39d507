"""What the ledger says of known cases: bytes per parameter, what AMP changes, what checkpointing and dropout keep."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampedu.memory import measure, predict

WIDTH, EQUAL = 64, 12


def meta(build):
    with torch.device("meta"):
        return build()


def per_parameter(bias=True, **how):
    """Of twelve matrices of one size, so that the largest is a twelfth of all; hardly any activations."""
    model = meta(lambda: nn.Sequential(*[nn.Linear(1024, 1024, bias=bias) for _ in range(EQUAL)]))
    return predict(model, torch.empty(1, 1024, device="meta"), **how)


# Adam's rule per parameter of b bytes: weight, gradient, two moments, and a for-loop's temporaries: the root of the
# second moment and its quotient, of one matrix at a time; foreach takes the roots of all matrices at once; fused none.
# Figures are for matrices alone: their biases are a thousandth.
@pytest.mark.parametrize(("implementation", "temporaries"), [("for-loop", 2 / EQUAL), ("foreach", 1), ("fused", 0)])
@pytest.mark.parametrize(("policy", "size"), [("fp32", 4), ("bf16", 4), ("fp16", 4), ("pure_bf16", 2)])
def test_adamw_step_per_parameter(implementation, temporaries, policy, size):
    ledger = per_parameter(policy=policy, implementation=implementation)
    step = ledger.moments["optimizer step"].bytes / ledger.parameters
    assert step == pytest.approx(size * (4 + temporaries), rel=0.001)


def test_a_for_loop_still_holds_the_last_quotient_when_no_bias_is_between():
    ledger = per_parameter(bias=False, implementation="for-loop")
    assert ledger["optimizer temporaries"] == 3 * 1024 * 1024 * 4


def test_the_choice_of_implementation_follows_the_device():
    assert per_parameter(device_policy="cuda").bytes_per_parameter == pytest.approx(20, abs=0.01)
    assert per_parameter(device_policy="cpu").bytes_per_parameter == pytest.approx(16.67, abs=0.01)


@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("momentum", 4), ("adam", 8), ("adamw", 8)])
def test_optimizer_state(optimizer, state):
    ledger = per_parameter(optimizer=optimizer)
    assert ledger["optimizer state"] / ledger.parameters == pytest.approx(state, abs=0.001)


def test_weight_casts_are_two_bytes_each_and_gone_before_the_step():
    ledger = per_parameter(policy="bf16")
    assert ledger["weight casts"] == 2 * ledger.parameters
    assert ledger.moments["optimizer step"].rows.get("weight casts", 0) == 0
    assert per_parameter(policy="fp32")["weight casts"] == 0
    assert ledger.total > ledger.peak


def test_amp_takes_more_with_few_rows_and_less_with_many():
    def ratio(rows):
        model = meta(lambda: nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(256, 256), nn.GELU())]))
        x = torch.empty(rows, 256, device="meta")
        peaks = [predict(model, x, policy=policy, implementation="fused").peak for policy in ("bf16", "fp32")]
        return peaks[0] / peaks[1]

    assert ratio(1) > 1
    assert 0.5 < ratio(8192) < 0.7


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (y.view(b, t, 4, -1).transpose(1, 2) for y in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, width=256, layers=4, vocabulary=2048):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(128, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@pytest.mark.parametrize(("lists", "peak", "saved"), [("cpu", -0.22, -0.34), ("cuda", -0.25, -0.28)])
def test_a_small_gpt_does_not_halve(lists, peak, saved):
    model, batch = meta(GPT), (torch.empty(16, 128, dtype=torch.long, device="meta"),) * 2
    full, amp = (predict(model, batch, policy=policy, device_policy=lists) for policy in ("fp32", "bf16"))
    assert full.parameters == pytest.approx(4.2e6, rel=0.01)
    assert amp.peak / full.peak - 1 == pytest.approx(peak, abs=0.01)
    kept = amp["saved activations"] + amp.saved_casts
    assert kept / full["saved activations"] - 1 == pytest.approx(saved, abs=0.01)


def test_checkpointed_layers_keep_their_input_only():
    layers = 3

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            halves = [(nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(layers)]
            self.blocks = nn.ModuleList(nn.Sequential(up, nn.GELU(), down) for up, down in halves)

        def forward(self, x):
            for block in self.blocks:
                x = x + block(x)
            return x

    x = torch.empty(512, WIDTH, device="meta")
    plain, kept = (predict(meta(Tower), x, loss=torch.mean, checkpoint=c) for c in (None, True))
    one = 512 * WIDTH * 4
    # x of each block is the batch or the sum before it; without checkpointing, input and output of GELU come on top.
    assert plain["saved activations"] == (layers - 1) * one + layers * 8 * one
    assert kept["saved activations"] == (layers - 1) * one
    assert kept["recomputed activations"] >= 8 * one and plain["recomputed activations"] == 0


def test_shared_storages_count_once():
    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            y = self.layer(x)
            return y * y + (y * y.view(-1, 8)).T.contiguous().T

    ledger = predict(meta(Same), torch.empty(4, 8, device="meta"), loss=lambda out: out.sum())
    assert ledger["saved activations"] == 4 * 8 * 4


def test_dropout_keeps_a_byte_an_element_on_a_gpu_and_a_mask_in_the_input_dtype_on_a_cpu():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(4, 8)
    saved = {lists: predict(model, x, device_policy=lists)["saved activations"] for lists in ("cuda", "cpu")}
    assert saved == {"cuda": 32, "cpu": 4 * 32}
    assert measure(model, x)["saved activations"] == 32


def test_attention_with_dropout_keeps_no_matrix_of_weights_on_a_gpu():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            y = self.layer(x).view(2, 2, -1, 16)
            return F.scaled_dot_product_attention(y, y, y, dropout_p=0.1)

    x = torch.empty(2, 2 * 256, 16, device="meta")
    saved = {lists: predict(meta(Attention), x, device_policy=lists)["saved activations"] for lists in ("cuda", "cpu")}
    weights = 2 * 2 * 256 * 256 * 4
    assert saved["cuda"] < weights < saved["cpu"]


def test_accumulation_adds_the_gradients_to_the_forward_pass():
    one, more = (per_parameter(accumulate=n) for n in (1, 4))
    assert one.moments["forward"].bytes / one.parameters == pytest.approx(12, abs=0.1)
    assert more.moments["forward"].bytes / more.parameters == pytest.approx(16, abs=0.1)
    assert per_parameter(accumulate=2).peak == more.peak
