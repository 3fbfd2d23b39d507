"""Scaling on paper: how long gradients travel, and what of it the backward pass hides.

Ring all-reduce: each of n ranks sends 2 (n - 1) messages of 1/n of the buffer, so 2 (n - 1)/n of its bytes, the least
that is possible as long as the ranks do all the adding (switches that add can do with fewer).
P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib.
Comput. 69 (2009) 117-124. The time of a message is its latency plus its bytes
over the bandwidth (Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19 (2005) 49-66).
"""

from dataclasses import dataclass

# Shares of the buffer that each rank sends, in rings of n ranks, and rounds of messages.
SHARES = {
    "all_reduce": lambda n: (2 * (n - 1) / n, 2 * (n - 1)),
    "reduce_scatter": lambda n: ((n - 1) / n, n - 1),
    "all_gather": lambda n: ((n - 1) / n, n - 1),
}


def wire_bytes(nbytes: int, ranks: int, op: str = "all_reduce", algorithm: str = "ring") -> float:
    """Bytes that each rank sends for a collective whose whole buffer has `nbytes` bytes.

    op: "all_reduce", "reduce_scatter" or "all_gather". algorithm: "ring": (n - 1)/n of the buffer per pass, and an
    all-reduce makes two passes (Patarasuk and Yuan 2009). "parameter_server": all to one server and back, the
    server's link carries 2 n buffers; returned is the load of that link.
    """
    _check(nbytes=nbytes, ranks=ranks)
    if op not in SHARES:
        raise ValueError(f"op is {op!r}: use {', '.join(SHARES)}")
    if algorithm == "ring":
        return SHARES[op](ranks)[0] * nbytes
    if algorithm == "parameter_server" and op == "all_reduce":
        return 2.0 * ranks * nbytes
    raise ValueError(f"algorithm is {algorithm!r} for {op}: use 'ring', or 'parameter_server' for an all_reduce")


@dataclass(frozen=True)
class StepTime:
    """A step on paper; seconds. exposed: the part of the communication that nothing hides."""

    compute: float
    communication: float
    exposed: float
    wire_bytes: float

    @property
    def total(self) -> float:
        """Seconds per step."""
        return self.compute + self.exposed

    @property
    def efficiency(self) -> float:
        """Share of the step in which the GPU computes."""
        return self.compute / self.total


def step_time(params, dtype_bytes, ranks, bandwidth, compute_seconds, overlap=0.0, latency=0.0) -> StepTime:
    """Seconds of one data-parallel step on paper: compute, plus the part of a ring all-reduce that is not hidden.

        communication = 2 (n - 1) × latency + 2 (n - 1)/n × params × dtype_bytes / bandwidth
        total = compute_seconds + max(0, communication - overlap × compute_seconds)

    params: number of gradients. dtype_bytes: bytes of one on the wire, 4 for plain DDP. ranks: n ≥ 1.
    bandwidth: bytes per second that each rank can send, of the slowest link in the ring. compute_seconds: forward,
    backward and optimizer of one rank. overlap: share of the compute time beside which gradients can travel: 0 for
    none, 2/3 for a backward pass that takes twice the forward's time. latency: seconds per message.

    Left out: other traffic on the links, the last bucket (which cannot be hidden), slow ranks, and that NCCL takes
    trees instead of rings for small buffers on many ranks. Formula and sources: the top of this module.
    """
    _check(params=params, dtype_bytes=dtype_bytes, ranks=ranks)
    if not bandwidth > 0:
        raise ValueError(f"bandwidth is {bandwidth!r}: give bytes per second, more than 0")
    if compute_seconds <= 0 or latency < 0:
        raise ValueError("compute_seconds must be more than 0, and latency at least 0")
    if not 0 <= overlap <= 1:
        raise ValueError(f"overlap is {overlap!r}: give a share of the compute time, from 0 to 1")
    share, rounds = SHARES["all_reduce"](ranks)
    sent = share * params * dtype_bytes
    communication = rounds * latency + sent / bandwidth
    exposed = max(0.0, communication - overlap * compute_seconds)
    return StepTime(compute_seconds, communication, exposed, sent)


def _check(ranks, **sizes):
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise ValueError(f"ranks is {ranks!r}: give a whole number from 1 up")
    for name, size in sizes.items():
        if not size >= 0:
            raise ValueError(f"{name} is {size!r}: give a number from 0 up")
