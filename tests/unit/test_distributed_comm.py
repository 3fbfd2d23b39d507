"""The communication ledger against the theory, on real collectives of one rank and on the fake backend."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ampedu.distributed import CommLedger, CommRow
from ampedu.distributed.comm import C10D, FUNCTIONAL


@pytest.fixture
def group(request):
    """A process group of this process alone (gloo), or one rank of four whose collectives do nothing (fake)."""
    if request.param == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 64), nn.LayerNorm(64), nn.Linear(64, 16))


COUNT = 48 * 64 + 64 + 2 * 64 + 64 * 16 + 16


def ddp(hook=None):
    model = nn.parallel.DistributedDataParallel(network())
    if hook:
        model.register_comm_hook(None, hook)
    step(model)  # the reducer sorts its buckets in the second step
    step(model)
    return model


def step(model):
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.ones(4, 48)).float().square().mean()
    loss.backward()


@pytest.mark.parametrize("group", ["gloo"], indirect=True)
def test_ddp_with_amp_sends_four_bytes_per_parameter(group):
    model = ddp()
    with CommLedger() as ledger:
        step(model)
    assert ledger.rows == [CommRow("all_reduce", "float32", 1, COUNT, 4 * COUNT)]
    assert (ledger.calls, ledger.bytes, ledger.of("all_reduce"), ledger.of("broadcast")) == (1, 4 * COUNT, 4 * COUNT, 0)


@pytest.mark.parametrize("group", ["gloo"], indirect=True)
def test_the_fp16_hook_sends_two_bytes_per_parameter(group):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = ddp(fp16_compress_hook)
    with CommLedger() as ledger:
        step(model)
    assert ledger.rows == [CommRow("all_reduce", "float16", 1, COUNT, 2 * COUNT)]
    assert ledger.of("all_reduce", "float16") == 2 * COUNT and ledger.of("all_reduce", "float32") == 0


@pytest.mark.parametrize("group", ["gloo"], indirect=True)
def test_small_buckets_are_more_calls_and_the_same_bytes(group):
    model = nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=0.005)
    for _ in range(2):
        step(model)
    with CommLedger() as ledger:
        step(model)
    assert ledger.calls > 1 and ledger.bytes == 4 * COUNT


@pytest.mark.parametrize("group", ["gloo"], indirect=True)
def test_no_sync_sends_nothing(group):
    model = ddp()
    with CommLedger() as ledger, model.no_sync():
        step(model)
    assert ledger.rows == [] and "no collective" in str(ledger)


@pytest.mark.parametrize("group", ["gloo"], indirect=True)
def test_gradients_are_the_same_with_and_without_the_ledger(group):
    model = ddp()
    model.zero_grad()
    step(model)
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with CommLedger():
        step(model)
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters(), strict=True))


@pytest.mark.parametrize("group", ["fake"], indirect=True)
@pytest.mark.parametrize(("reduce_dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2), (None, 2)])
def test_fsdp2_gathers_in_param_dtype_and_reduces_in_reduce_dtype(group, reduce_dtype, size):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    model = network()
    for layer in (*model, model):
        fully_shard(layer, mp_policy=policy)
    with CommLedger() as ledger:
        model(torch.ones(4, 48)).float().sum().backward()
    # Every size here divides by the four ranks, so nothing is padded. Each layer is gathered for the forward pass, and
    # again for the backward pass: but the last of them is not freed in between where FSDP keeps it.
    name = str(reduce_dtype or torch.bfloat16).removeprefix("torch.")
    assert ledger.of("reduce_scatter", name) == ledger.of("reduce_scatter") == size * COUNT
    assert ledger.of("all_gather") == ledger.of("all_gather", "bfloat16")
    assert 2 * COUNT <= ledger.of("all_gather") <= 2 * 2 * COUNT


def new_name(name, old):
    """A function of torch.distributed by the name that torch 2.13 gave it, or the one before."""
    return getattr(dist, name, None) or getattr(dist, old)


def test_every_collective_of_this_torch_is_known():
    import torch.distributed._functional_collectives

    known = {"c10d": C10D, "_c10d_functional": FUNCTIONAL}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space in known and {"process_group", "group_name"} & {argument.name for argument in schema.arguments}:
            assert name in known[space], f"{schema.name} sends something that the ledger does not count"


@pytest.mark.parametrize("group", ["fake"], indirect=True)
def test_every_collective_by_hand(group):
    ranks, four = 4, torch.ones(4)
    with CommLedger() as ledger:
        dist.all_reduce(four)
        dist.broadcast(four.half(), 0)
        dist.all_gather([torch.empty(4) for _ in range(ranks)], four)
        new_name("all_gather_single", "all_gather_into_tensor")(torch.empty(16), four)
        new_name("reduce_scatter_single", "reduce_scatter_tensor")(four, torch.ones(16))
        dist.reduce_scatter(four, [torch.ones(4) for _ in range(ranks)])
        dist.all_to_all_single(torch.empty(8), torch.ones(8))
        dist.reduce(torch.ones(5, dtype=torch.float64), 0)
        dist.gather(four, [torch.empty(4) for _ in range(ranks)], 0)
        dist.scatter(torch.empty(4), [torch.ones(4) for _ in range(ranks)], 0)
        dist.barrier()
    assert [(row.op, row.dtype, row.calls, row.bytes) for row in ledger.rows] == [
        ("all_reduce", "float32", 1, 16),
        ("broadcast", "float16", 1, 8),
        ("all_gather", "float32", 2, 128),
        ("reduce_scatter", "float32", 2, 128),
        ("all_to_all", "float32", 1, 32),
        ("reduce", "float64", 1, 40),
        ("gather", "float32", 1, 16),
        ("scatter", "float32", 1, 16),
        ("barrier", "", 1, 0),
    ]
    assert [set(row) for row in ledger.plain()] == [{"op", "dtype", "calls", "elements", "bytes"}] * 9
    ledger.reset()
    assert ledger.rows == []


@pytest.mark.parametrize("group", ["fake"], indirect=True)
def test_functional_collectives_count_like_the_others(group):
    from torch.distributed import _functional_collectives as functional

    with CommLedger() as ledger:
        functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD).sum()
        for result in (
            torch.ops._c10d_functional.all_gather_into_tensor(torch.ones(4), 4, dist.group.WORLD.group_name),
            torch.ops._c10d_functional.reduce_scatter_tensor(torch.ones(16), "sum", 4, dist.group.WORLD.group_name),
        ):
            torch.ops._c10d_functional.wait_tensor(result)
    assert [(row.op, row.calls, row.bytes) for row in ledger.rows] == [
        ("all_reduce", 1, 16), ("all_gather", 1, 64), ("reduce_scatter", 1, 64)]  # fmt: skip
