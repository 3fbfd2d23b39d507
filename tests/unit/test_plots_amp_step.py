"""Figure F2 must be true of PyTorch: the dtypes on its edges are those of a real step."""

import pytest
import torch
from matplotlib.text import Text
from torch import nn

from ampedu.plots import amp_step
from ampedu.plots.step import edges
from ampedu.trace import step_edges, trace_dtypes


def observed(dtype, scaled):
    """Dtypes of what flows in one real step on the CPU."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    seen, inputs = {("w", "cast"): model.weight.dtype}, torch.randn(16, 8)
    seen["x", "cast"] = inputs.dtype
    with torch.autocast("cpu", dtype=dtype):
        out = model(inputs)
        # The CPU keeps softmax in low precision; the figure shows CUDA's policy, that of a float32 loss.
        loss = nn.functional.cross_entropy(out.float(), torch.zeros(16, dtype=torch.long))
    out.register_hook(lambda gradient: seen.update({("loss_b", "matmul_b"): gradient.dtype}))
    seen["matmul", "loss"], seen["loss", "scale" if scaled else "loss_b"] = out.dtype, loss.dtype
    total = scaler.scale(loss)
    seen["scale", "loss_b"] = total.dtype
    total.backward()
    seen["cast_b", "grad"] = seen["grad", "unscale" if scaled else "clip"] = model.weight.grad.dtype
    scaler.unscale_(optimizer) if scaled else None
    seen["unscale", "clip"] = seen["clip", "step"] = model.weight.grad.dtype
    scaler.step(optimizer)
    scaler.update()
    seen["step", "w"] = model.weight.dtype
    return seen


@pytest.mark.parametrize(("dtype", "scaled"), [(torch.float16, True), (torch.bfloat16, False)])
def test_the_dtypes_on_the_edges_are_those_of_a_real_step(dtype, scaled):
    names = {32: torch.float32, 16: dtype}
    drawn = {(start, end): names[width] for start, end, width, _ in edges(scaled)}
    seen = observed(dtype, scaled)
    compared = set(drawn) & set(seen)
    assert {edge: drawn[edge] for edge in compared} == {edge: seen[edge] for edge in compared}
    # Inside autograd and autocast no hook sees these three.
    assert set(drawn) - set(seen) == {("cast", "matmul"), ("matmul_b", "cast_b")}


def test_the_cuda_policy_runs_softmax_and_losses_in_float32():
    """Dtypes only, by fake tensors without gradients: torch.autocast("cuda") switches itself off where no GPU is."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    try:
        with torch.no_grad(), FakeTensorMode():
            logits = torch.empty(4, 4, device="cuda", dtype=torch.float16)
            target = torch.empty(4, dtype=torch.long, device="cuda")
            assert torch.softmax(logits, -1).dtype == torch.float32
            assert nn.functional.cross_entropy(logits, target).dtype == torch.float32
            assert nn.functional.linear(logits.float(), logits.float()).dtype == torch.float16
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
        torch.clear_autocast_cache()


def test_fp16_has_a_scaler_and_bf16_has_none():
    words = {text.get_text() for text in amp_step("fp16").figure.findobj(Text)}
    assert {"scaler.scale", "scaler.unscale_", "clip_grad_norm_", "scaler.step", "scaler.update"} <= words
    words = {text.get_text() for text in amp_step("bf16").figure.findobj(Text)}
    assert not any("scaler" in word for word in words) and "optimizer.step" in words


def test_every_edge_carries_its_dtype_in_words():
    words = [text.get_text() for text in amp_step("fp16").figure.axes[0].texts]
    labels = [word for word in words if word.endswith(("float16", "float32")) and not word.startswith("always")]
    assert len(labels) >= len(edges(scaled=True))


def test_unscale_comes_before_clip_and_clip_before_step():
    order = [(start, end) for start, end, *_ in edges(scaled=True)]
    assert ("grad", "unscale") in order and ("unscale", "clip") in order and ("clip", "step") in order


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="fp16 or bf16, not in e5m2"):
        amp_step("e5m2")


BEHIND = (("grad", "unscale"), ("unscale", "clip"), ("clip", "step"), ("step", "w"))


def traced(model, dtype=torch.float16, policy="cuda", scale=8.0):
    """Edges of a step of a classifier, up to .grad."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    target = torch.zeros(16, dtype=torch.long)

    def loss(out):
        return scaler.scale(nn.functional.cross_entropy(out, target))

    return step_edges(trace_dtypes(model, torch.ones(16, 8), device_policy=policy, dtype=dtype, loss=loss))


@pytest.mark.parametrize("model", [nn.Linear(8, 4), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))])
def test_a_traced_step_has_the_dtypes_that_the_figure_draws(model):
    drawn = {(start, end): torch.float32 if width == 32 else torch.float16 for start, end, width, _ in edges(True)}
    seen = traced(model)
    assert seen == {edge: dtype for edge, dtype in drawn.items() if edge not in BEHIND}


def test_what_was_seen_is_drawn_even_where_it_differs():
    seen = {**traced(nn.Linear(8, 4)), **dict.fromkeys(BEHIND, torch.float32)}
    picture = amp_step("fp16", {**seen, ("matmul", "loss"): torch.float64})
    words = [text.get_text() for text in picture.figure.axes[0].texts]
    assert words.count("float64") == 1
    assert "from matmuls to softmax, loss float64" in picture.alt


def test_an_edge_that_nobody_saw_is_named():
    with pytest.raises(ValueError, match="grad to unscale, unscale to clip, clip to step, step to w"):
        amp_step("fp16", traced(nn.Linear(8, 4)))


def test_a_trace_without_a_scaled_loss_has_no_edges():
    with pytest.raises(ValueError, match=r"scaler\.scale"):
        step_edges(trace_dtypes(nn.Linear(8, 4), torch.ones(2, 8)))
    with pytest.raises(ValueError, match=r"scaler\.scale"):
        step_edges(trace_dtypes(nn.Linear(8, 4), torch.ones(2, 8), dtype=None))


def test_several_dtypes_on_one_edge_are_refused():
    """Autocast casts down for the linear layers, and up for the norm between them."""
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    with pytest.raises(ValueError, match=r"from cast to matmul flows torch\.float16 and torch\.float32"):
        traced(model)
