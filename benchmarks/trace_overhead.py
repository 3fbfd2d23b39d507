"""What a dtype trace costs: forward and backward of a small transformer, plain and traced, under the CUDA policy.

OMP_NUM_THREADS=1 python benchmarks/trace_overhead.py
"""

import statistics
import time

import torch

from ampedu.policy import cuda_policy_on_cpu
from ampedu.trace import trace_dtypes

REPEATS = 7


def milliseconds(run) -> float:
    run()
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def main() -> None:
    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(8, 32, 64)

    def plain():
        with cuda_policy_on_cpu():
            with torch.autocast("cpu"):
                y = model(x)
            y.backward(torch.ones_like(y))
        model.zero_grad()

    without, traced = milliseconds(plain), milliseconds(lambda: trace_dtypes(model, x, device_policy="cuda"))
    count = len(trace_dtypes(model, x, device_policy="cuda").ops)
    each = 1e3 * (traced - without) / count
    print(f"{count} operations: plain {without:.1f} ms, traced {traced:.1f} ms, {each:.0f} µs more for each operation")


if __name__ == "__main__":
    main()
