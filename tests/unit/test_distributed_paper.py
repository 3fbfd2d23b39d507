"""Scaling on paper, against a ring all-reduce that is played message by message."""

import pytest

from ampedu.distributed import step_time, wire_bytes


def played_ring(size, ranks):
    """(bytes that a rank sends, rounds) of a ring all-reduce over chunks, with the sums checked."""
    chunk = size // ranks
    buffers = [[rank * 10 + c for c in range(ranks)] for rank in range(ranks)]
    wanted = [sum(buffers[rank][c] for rank in range(ranks)) for c in range(ranks)]
    sent = rounds = 0
    for gather in (False, True):
        for k in range(ranks - 1):
            moves = []
            for rank in range(ranks):
                c = (rank - k + gather) % ranks
                moves.append(((rank + 1) % ranks, c, buffers[rank][c]))
            for to, c, value in moves:
                buffers[to][c] = value if gather else buffers[to][c] + value
            sent += chunk
            rounds += 1
    assert buffers == [wanted] * ranks
    return sent, rounds


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_ring_sends_what_a_played_ring_sends(ranks):
    size = 4 * 3 * 5 * 8 * 7
    sent, rounds = played_ring(size, ranks)
    assert wire_bytes(size, ranks) == pytest.approx(sent)
    assert wire_bytes(size, ranks, "reduce_scatter") + wire_bytes(size, ranks, "all_gather") == pytest.approx(sent)
    alone = step_time(0, 4, ranks, bandwidth=1.0, compute_seconds=1.0, latency=1.0)
    assert alone.communication == rounds


def test_one_rank_sends_nothing():
    assert wire_bytes(100, 1) == wire_bytes(100, 1, "all_gather") == 0
    assert step_time(1000, 4, 1, 1.0, 0.5, latency=1.0).total == 0.5


def test_a_server_carries_every_buffer_in_and_out():
    assert wire_bytes(100, 8, algorithm="parameter_server") == 8 * 100 + 8 * 100


def test_a_step_of_numbers_that_are_easy_in_the_head():
    # 1e9 float32 gradients on 4 ranks: 2 · 3/4 · 4 GB = 6 GB, at 3 GB/s 2 s; a compute of 3 s can hide half of itself.
    step = step_time(10**9, 4, 4, 3e9, 3.0, overlap=0.5)
    assert (step.wire_bytes, step.communication, step.exposed, step.total) == (6e9, 2.0, 0.5, 3.5)
    assert step.efficiency == pytest.approx(6 / 7)
    assert step_time(10**9, 2, 4, 3e9, 3.0, overlap=0.5).total == 3.0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": 2.0}, "ranks is 2.0"),
        ({"bandwidth": 0}, "bandwidth is 0"),
        ({"overlap": 1.5}, "overlap is 1.5"),
        ({"params": -1}, "params is -1"),
        ({"compute_seconds": 0}, "compute_seconds"),
        ({"latency": -1}, "latency"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(change, match):
    good = {"params": 10, "dtype_bytes": 4, "ranks": 2, "bandwidth": 1.0, "compute_seconds": 1.0}
    with pytest.raises(ValueError, match=match):
        step_time(**good | change)


def test_unknown_collectives_and_algorithms_are_refused():
    with pytest.raises(ValueError, match="op is 'gossip'"):
        wire_bytes(1, 2, "gossip")
    with pytest.raises(ValueError, match="algorithm is 'tree'"):
        wire_bytes(1, 2, algorithm="tree")
