"""Counts what a piece of training does: operations called, arithmetic of the products, bytes read and written."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class WorkCounter(TorchDispatchMode):
    """While entered, counts every operation below autograd, in forward, backward and optimizer alike; views are none.

    calls: times called; flops: floating-point operations of products, convolutions and fused attention, by torch's own
    formulas (torch.utils.flop_counter); bytes: of all tensors that the others read and write, each tensor once per
    place in the call. All by the operation's name in aten, such as "addmm" or "_to_copy", which is a cast or a copy to
    another device. Entering again begins anew.
    """

    def __init__(self):
        super().__init__()
        from torch.utils.flop_counter import flop_registry  # imports what most users of this module's names do not need

        self._formulas = flop_registry
        self.calls, self.flops, self.bytes = Counter(), Counter(), Counter()

    def __enter__(self):
        self.calls, self.flops, self.bytes = Counter(), Counter(), Counter()
        return super().__enter__()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = op(*args, **kwargs)
        if op.is_view:
            return result
        packet, name = op.overloadpacket, op.overloadpacket.__name__
        self.calls[name] += 1
        if packet in self._formulas:
            self.flops[name] += self._formulas[packet](*args, **kwargs, out_val=result)
        elif name in CPU_ATTENTION:
            self.flops[name] += CPU_ATTENTION[name](*args)
        else:
            leaves = tree_leaves((args, kwargs, result))
            self.bytes[name] += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
        return result

    @property
    def total_calls(self) -> int:
        """Of all operations."""
        return sum(self.calls.values())

    @property
    def total_flops(self) -> int:
        """Of all products."""
        return sum(self.flops.values())

    @property
    def total_bytes(self) -> int:
        """Of all operations that are not products."""
        return sum(self.bytes.values())


def _attention(query, key, value, *_):
    return 4 * query.numel() * key.shape[-2]  # Q Kᵀ and P V: two products


def _attention_backward(gradient, query, key, *_):
    return 10 * query.numel() * key.shape[-2]  # five: Q Kᵀ again, and one for each of V, P, Q, K


CPU_ATTENTION = {  # which torch's table lacks; the same sums as in its rows for CUDA's kernels
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
