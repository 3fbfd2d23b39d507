"""Operations, arithmetic and traffic of small pieces of training, by hand and by torch's own counter."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ampedu.counting import WorkCounter


def test_a_linear_layer_forward_and_backward_by_hand():
    layer, x = nn.Linear(8, 16), torch.randn(4, 8)
    with WorkCounter() as count:
        layer(x).sum().backward()
    assert count.total_flops == 2 * 4 * 8 * 16 * 2  # the product, and one for the weight's gradient; x needs none
    assert count.calls["addmm"] == count.calls["mm"] == 1


def test_bytes_are_read_and_written_and_views_are_free():
    x = torch.randn(4, 8)
    with WorkCounter() as count:
        (x.t() + 1).bfloat16()
    assert count.bytes == {"add": 2 * 128, "_to_copy": 128 + 64}
    assert count.calls["t"] == 0 and count.total_calls == 2 and count.total_bytes == 448


def test_lists_of_tensors_count():
    weights = [nn.Parameter(torch.ones(10)) for _ in range(3)]
    optimizer = torch.optim.SGD(weights, lr=0.1, foreach=True)
    for weight in weights:
        weight.grad = torch.ones(10)
    with WorkCounter() as count:
        optimizer.step()
    assert count.total_bytes == 3 * 2 * 40


def test_agrees_with_torch_on_convolutions():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    x = torch.randn(2, 3, 10, 10)
    with WorkCounter() as count, FlopCounterMode(display=False) as theirs:
        network(x).sum().backward()
    assert count.total_flops == theirs.get_total_flops()


@pytest.mark.parametrize("backward", [False, True])
def test_fused_attention_of_the_cpu_counts_as_on_a_gpu(backward):
    q, k, v = (torch.randn(2, 3, length, 8, requires_grad=True) for length in (16, 24, 24))
    with WorkCounter() as count:
        result = nn.functional.scaled_dot_product_attention(q, k, v)
        if backward:
            result.sum().backward()
    one = 2 * 2 * 3 * 16 * 24 * 8
    assert count.total_flops == one * (7 if backward else 2)
    assert not any("attention" in name for name in count.bytes)


def test_entering_again_begins_anew():
    count = WorkCounter()
    for _ in range(2):
        with count:
            torch.ones(2).neg()
    assert count.calls == {"ones": 1, "neg": 1}
