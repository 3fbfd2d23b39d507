"""What a trace on a CPU cannot show of a GPU: said below the table instead of left to the reader."""

RNN = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


def notes(trace) -> tuple[str, ...]:
    """Sentences on where the CPU's kernels differ from the GPU's under the same policy."""
    if trace.policy != "cuda" or trace.device != "cpu":
        return ()
    found = []
    calls = {op.call for op in trace.ops} | {op.name for op in trace.ops}
    kinds = {call.kind for call in trace.modules}
    low = str(trace.dtype).removeprefix("torch.")
    if calls & RNN or "mkldnn_rnn_layer" in calls or kinds & {"LSTM", "GRU", "RNN"}:
        found.append(
            "The CPU computes RNN layers step by step. A GPU runs them in cuDNN, whose kernel is on autocast's list: "
            f"all of it is {low} there."
        )
    if any(op.call == "scaled_dot_product_attention" and op.name == "bmm" for op in trace.ops):
        found.append(
            "scaled_dot_product_attention: the CPU computes it in float32 steps here (dropout or a mask). "
            f"A GPU has one kernel for it, {low} outside and float32 sums inside."
        )
    return tuple(found)
