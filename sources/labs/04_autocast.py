# %% [markdown]
# # Lab 4 Autocast and its op lists
#
# Autocast looks like magic and is a list of names with five rules. In this lab you predict what it does, write one of
# your own, and then repair what goes wrong where its regions end.
#
# **You will be able to** name the dtype of an expression under the CUDA policy · write an autocast · count its casts ·
# build a float32 island that holds · write a backward that survives a region · give your own operations a rule ·
# recognize five boundary bugs by their messages.
#
# *165 minutes · parts A and B make a good first session · after lesson 4 · runs on every machine*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("This lab computes on the CPU: its answers are the same on every machine.")

# %% [markdown]
# | part | exercise | difficulty | minutes | points |
# |---|---|---|---|---|
# | A Lists | 4.1 Twenty dtypes | ●●○ | 15 | 3 |
# | | 4.2 Three rules | ●○○ | 10 | 2 |
# | | 4.3 An autocast of your own | ●●● | 35 | 5 |
# | B Casts | 4.4 How many casts? | ●●○ | 15 | 3 |
# | | 4.5 A float32 island | ●●○ | 12 | 2 |
# | C Operations | 4.6 A backward of your own | ●●○ | 18 | 3 |
# | | 4.7 A rule for an operation of your own | ●●○ | 12 | 2 |
# | D Five bugs | 4.8 Bug 1: a buffer of another dtype | ●○○ | 8 | 1 |
# | | 4.9 Bug 2: NumPy has no bfloat16 | ●○○ | 6 | 1 |
# | | 4.10 Bug 3: a kernel that is missing | ●●○ | 12 | 2 |
# | | 4.11 Bug 4: a loss that is banned | ●○○ | 10 | 1 |
# | | 4.12 Bug 5: training stands still | ●●○ | 12 | 2 |
#
# **How checking works.** Replace the line that raises `NotImplementedError`, run the cell, then run the check below
# it, as often as you like. An exercise that you have not begun says so and stops nothing: *Run All* always reaches the
# end.

# %%
import torch
import torch.nn.functional as F
from ampedu.exercises import check

# %% [markdown]
# ## A Lists
#
# ### 4.1 Twenty dtypes ●●○ 15 minutes
#
# You are on a GPU, inside `torch.autocast("cuda", dtype=torch.float16)`. `x` and `w` are float32
# tensors of shape (16, 16), `h` is the float16 result of a linear layer, `ids` are int64 class numbers, `mean` and
# `var` are float32 statistics. Each line starts anew. What is the dtype of the result?
#
# | | expression | | expression |
# |---|---|---|---|
# | 1 | `x @ w` | 11 | `h * h` |
# | 2 | `x + h` | 12 | `F.layer_norm(h, (16,))` |
# | 3 | `F.gelu(h)` | 13 | `F.batch_norm(h, mean, var)` |
# | 4 | `h.softmax(-1)` | 14 | `F.scaled_dot_product_attention(x, x, x)` |
# | 5 | `h.softmax(-1, dtype=torch.float16)` | 15 | `F.cross_entropy(h, ids)` |
# | 6 | `h.sum()` | 16 | `(h - h.roll(1)).abs().mean()` |
# | 7 | `h.mean()` | 17 | `h.float() @ w` |
# | 8 | `h.exp()` | 18 | `torch.cat([h, x])` |
# | 9 | `h.exp_()` | 19 | `torch.tensordot(x, w, dims=1)` |
# | 10 | `h ** 2` | 20 | `x.double() @ w.double()` |
#
# Write all twenty down before you check: the check tells you the reason of the first miss. Do not try them in
# `torch.autocast("cpu")`. It has other lists.


# %% exercise="04.predicted"
def predicted() -> dict[str, list[int]]:
    """Sort the numbers of the twenty expressions by dtype.

    Returns a dict with the keys "float16", "float32" and "float64"; each value is a list of the
    numbers whose result has this dtype.
    """
    ### BEGIN SOLUTION
    return {
        "float16": [1, 3, 5, 7, 9, 11, 13, 14, 16, 17],
        "float32": [2, 4, 6, 8, 10, 12, 15, 18, 19],
        "float64": [20],
    }
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.predicted", predicted)

# %% [markdown]
# <details><summary>I do not know where to begin</summary>
#
# Ask two questions. Is the operation on a list? If not, autocast does nothing at all, and torch's ordinary rules
# decide. If it is, on which one: matrix products, things that overflow or add up, or things that need equal dtypes?
# </details>
#
# <details><summary>Is everything that ends in a reduction float32?</summary>
#
# The lists hold names, not ideas. `sum`, `cumsum` and `prod` are there, `mean` is not.
# </details>
#
# <details><summary>What about normalization layers?</summary>
#
# They are not alike. [Lesson 4](../notebooks/04_autocast.ipynb) has an explorer in which you can look up each name.
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 20 minutes.*

# %% [markdown]
# ### 4.2 Three rules ●○○ 10 minutes
#
# Before a listed operation runs, autocast casts its inputs. Three policies differ in the dtype they cast *to*:
#
# | policy | casts to | examples |
# |---|---|---|
# | `"lower_precision"` | the dtype of the region | `linear`, `matmul` |
# | `"float32"` | float32 | `exp`, `layer_norm` |
# | `"promote_widest"` | float32 if one of the inputs is float32, else the dtype of the region | `atan2`, `index_put` |
#
# (torch refuses to promote the *other* 16-bit dtype; the check does not ask for it.)
#
# Only float16, bfloat16 and float32 tensors are cast. All others pass as they are: integers, bools, and float64 too.


# %% exercise="04.input_dtypes"
def input_dtypes(policy: str | None, dtypes: list[torch.dtype], low: torch.dtype) -> list[torch.dtype]:
    """Return the dtypes that the inputs have after autocast.

    policy: one of the three above, or None for an operation that is on no list. dtypes: of the
    tensors that the operation is called with. low: the dtype of the region.
    Returns a list of the same length and order.
    """
    ### BEGIN SOLUTION
    eligible = (torch.float16, torch.bfloat16, torch.float32)
    if policy is None:
        return dtypes
    if policy == "lower_precision":
        to = low
    else:
        to = torch.float32 if policy == "float32" or torch.float32 in dtypes else low
    return [to if dtype in eligible else dtype for dtype in dtypes]
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.input_dtypes", input_dtypes)

# %% [markdown]
# <details><summary>Two equal inputs, and I return the wrong dtype for both</summary>
#
# `promote_widest` looks for the widest input. If none of them is float32, nothing has to become float32.
# </details>
#
# <details><summary>float64 goes wrong</summary>
#
# It is neither cast nor does it count as the widest: autocast looks past it, as it does with integers.
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 15 minutes.*

# %% [markdown]
# ### 4.3 An autocast of your own ●●● 35 minutes
#
# torch offers a place to stand: while a `TorchFunctionMode` is entered, every torch function that Python calls goes
# through its method `__torch_function__`, with its arguments. Watch one that only prints names.

# %% tags=["nbval-check-output"]
from torch.overrides import TorchFunctionMode


class Names(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        print(func.__name__)
        return func(*args, **(kwargs or {}))


x, w, b = torch.ones(2, 4), torch.ones(4, 4), torch.zeros(4)
with Names():
    F.softmax(F.linear(x, w, bias=b) ** 2, dim=-1)

# %% [markdown]
# Operators arrive under the names of the functions behind them. Inside the method the mode is off, so whatever you call
# there does not come back to you.
#
# Here are the lists, a part of CUDA's. Two policies are new. `"float32_set_dtype"` operations have an argument `dtype`.
# A caller who gives it is respected, and then nothing is cast; otherwise treat them as `"float32"`. A `"banned"`
# operation raises RuntimeError.

# %%
LISTS = {
    "lower_precision": "linear matmul mm bmm conv2d einsum linalg_multi_dot scaled_dot_product_attention",
    "float32": "exp log pow rsqrt softplus layer_norm mse_loss l1_loss nll_loss binary_cross_entropy_with_logits",
    "float32_set_dtype": "softmax log_softmax sum cumsum prod",
    "promote_widest": "addcmul atan2 cross dot tensordot index_put scatter_add",
    "banned": "binary_cross_entropy",
}
POLICY = {name: policy for policy, names in LISTS.items() for name in names.split()}

# %% [markdown]
# Some functions take their tensors in a list (`multi_dot`), or by name (`bias=b`). These helpers reach them all.

# %%
ELIGIBLE = (torch.float16, torch.bfloat16, torch.float32)


def mapped(function, values):
    """The same lists, tuples and dicts, with the function applied to every tensor in them."""
    if isinstance(values, dict):
        return {key: mapped(function, value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)([mapped(function, value) for value in values])
    return function(values) if isinstance(values, torch.Tensor) else values


def dtypes_in(values):
    """The dtypes of all tensors in lists, tuples and dicts."""
    found = []
    mapped(lambda tensor: found.append(tensor.dtype), values)
    return found


# %% [markdown]
# One rule is left. Autocast never touches calls that write into a given tensor: those with `out=` keep the dtypes
# they were given. In-place functions have names of their own, such as `exp_`, which are on no list.
#
# The check runs small models with your mode, built from the lists and from operations that are on none. It numbers
# their steps from [0] and compares the dtype of each.


# %% exercise="04.own_autocast"
class MyAutocast(TorchFunctionMode):
    """Cast inputs by the lists in POLICY.

    dtype: the dtype of the region, torch.float16 or torch.bfloat16.
    """

    def __init__(self, dtype: torch.dtype):
        ### BEGIN SOLUTION
        super().__init__()
        self.dtype = dtype
        ### END SOLUTION

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Call func with its inputs cast, and return its result.

        Raises RuntimeError for a banned function. float64 and integer tensors are never cast.
        """
        ### BEGIN SOLUTION
        kwargs = kwargs or {}
        policy = POLICY.get(func.__name__)
        if policy == "banned":
            raise RuntimeError(f"{func.__name__} is unsafe to autocast")
        given = policy == "float32_set_dtype" and kwargs.get("dtype") is not None
        if policy is None or given or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        to = torch.float32
        if policy == "lower_precision" or (policy == "promote_widest" and to not in dtypes_in([args, kwargs])):
            to = self.dtype
        args, kwargs = mapped(lambda x: x.to(to) if x.dtype in ELIGIBLE else x, [args, kwargs])
        return func(*args, **kwargs)
        ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.own_autocast", MyAutocast)

# %% [markdown]
# <details><summary>I do not know how to begin</summary>
#
# Start with a mode that only calls `func`. Then handle `"lower_precision"` alone: look up
# `POLICY.get(func.__name__)`, cast the arguments with `mapped`, call. The report says which step is the first wrong
# one; add a policy for each.
# </details>
#
# <details><summary>AttributeError, or the mode cannot be entered</summary>
#
# `TorchFunctionMode` has something to set up: call `super().__init__()` first.
# </details>
#
# <details><summary>A linear layer, and only that one, has mixed dtypes</summary>
#
# The bias came by name. Cast the values of `kwargs` too.
# </details>
#
# <details><summary>The dtypes are right and the values are not</summary>
#
# The *inputs* must be cast, before the call. A float16 result that was infinite stays infinite in float32.
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 50 minutes.*

# %% [markdown]
# ## B Casts
#
# ### 4.4 How many casts? ●●○ 15 minutes
#
# Every cast reads a tensor and writes another one. For weights, autocast keeps the result: the next operation in the
# same region finds the cast weight in a **cache**. Three calls of one linear layer then cost 5 casts (input, input,
# input, weight, bias) instead of 9.
#
# The cache takes a cast only if the tensor is a float32 **leaf that requires a gradient**, in short: a weight that is
# being trained. It is emptied when the *outermost* region ends. Count the casts of a sequence of events.


# %%
EVENTS = ["enter", ["input", "weight", "bias"], ["input", "weight", "bias"], "leave"]
TENSORS = {
    "input": {"dtype": torch.float32, "requires_grad": False, "leaf": True},
    "weight": {"dtype": torch.float32, "requires_grad": True, "leaf": True},
    "bias": {"dtype": torch.float32, "requires_grad": True, "leaf": True},
}


# %% exercise="04.count_casts"
def count_casts(tensors: dict[str, dict], events: list, cache_enabled: bool = True) -> int:
    """Count the casts of a sequence of calls.

    tensors: dtype, requires_grad and leaf by name, as in TENSORS; each is float32 or float16.
    events: "enter" and "leave" of a float16 region, which may be nested, and calls. A call is the
    list of names of its inputs; all operations are on the lower-precision list.
    cache_enabled: as the argument of torch.autocast. Outside of all regions nothing is cast.
    """
    ### BEGIN SOLUTION
    depth, casts, cache = 0, 0, set()
    for event in events:
        if event == "enter":
            depth += 1
        elif event == "leave":
            depth -= 1
            if depth == 0:
                cache.clear()
        elif depth:
            for name in event:
                tensor = tensors[name]
                if tensor["dtype"] == torch.float16 or name in cache:
                    continue
                casts += 1
                if cache_enabled and tensor["requires_grad"] and tensor["leaf"]:
                    cache.add(name)
    return casts
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.count_casts", count_casts)

# %% [markdown]
# <details><summary>I count too few</summary>
#
# Which tensors do you keep? An input does not require a gradient, an activation is no leaf, and a frozen weight does
# not require a gradient either: all of them are cast each time.
# </details>
#
# <details><summary>Only the nested regions are wrong</summary>
#
# Count the depth. Leaving an inner region does not empty the cache.
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 20 minutes.*

# %% [markdown]
# ### 4.5 A float32 island ●●○ 12 minutes
#
# Sometimes a part of a model needs float32 in spite of the region. What people try first is `x.float()`. See for
# yourself:

# %% tags=["nbval-check-output"]
with torch.autocast("cpu", dtype=torch.bfloat16):
    print((x.float() @ w.float()).dtype)
    with torch.autocast("cpu", enabled=False):
        print((x @ w).dtype)

# %% [markdown]
# The first product casts its inputs again. The second one stands in a region that is switched off. But there, nothing
# is cast at all, and a bfloat16 input meets a float32 weight: `expected m1 and m2 to have the same dtype`. An island
# needs both. (Why not `autocast(dtype=torch.float32)`? Only CUDA has such a region. Elsewhere, torch warns and switches
# autocast off.)


# %% exercise="04.in_float32"
def in_float32(function, *tensors: torch.Tensor) -> torch.Tensor:
    """Call the function on an island of float32.

    function: takes the tensors and returns a tensor. tensors: at least one, all on one device;
    float16, bfloat16, float32 or integers. The floating-point ones reach the function in float32,
    integers as they are, and nothing inside is cast. Returns what the function returns.
    The region outside, if there is one, goes on afterwards.
    """
    ### BEGIN SOLUTION
    wide = [tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors]
    with torch.autocast(tensors[0].device.type, enabled=False):
        return function(*wide)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.in_float32", in_float32)

# %% [markdown]
# <details><summary>tensors used as indices must be long, int, byte or bool</summary>
#
# You made the indices float32 as well. `tensor.is_floating_point()` tells them apart.
# </details>
#
# <details><summary>The result is still in 16 bits</summary>
#
# Is the *call of the function* inside the switched-off region, and does the region name the device on which the tensors
# are? A region for `"cuda"` does not touch tensors on the CPU: `tensors[0].device.type`.
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 18 minutes.*

# %% [markdown]
# ## C Operations
#
# ### 4.6 A backward of your own ●●○ 18 minutes
#
# This product clips the gradient that comes back. In float32 it works.


# %%
class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad = grad.clamp(-1, 1)
        return grad @ b.T, a.T @ grad


# %% [markdown]
# Under autocast, forward casts `a` and `b` for the product, but what it saved is float32. Backward runs outside of the
# region, as it should: its gradient is in 16 bits, the saved tensors are not, and nobody casts. The error appears in
# `loss.backward()`, far from its cause.
#
# `torch.amp.custom_fwd` and `torch.amp.custom_bwd` are decorators for the two methods. The first one remembers the
# region, the second one opens it again for backward. Both need `device_type=`, the device of the tensors. Write a
# repaired class inside the function below, or above it in the same cell.


# %% exercise="04.clipped_product"
def clipped_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiply x and w, with Clipped repaired for autocast.

    x: shape (n, k). w: shape (k, m). Returns x @ w in the dtype that autocast gives a product;
    outside of a region, in the dtype of x and w.
    Backward uses the gradient clipped to -1 … 1, in the precision in which forward ran.
    """

    ### BEGIN SOLUTION
    class Repaired(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=x.device.type)
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @torch.amp.custom_bwd(device_type=x.device.type)
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            clipped = torch.clamp(grad, -1, 1)
            return clipped @ w.T, x.T @ clipped

    return Repaired.apply(x, w)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.clipped_product", clipped_product)

# %% [markdown]
# <details><summary>The error in backward stays</summary>
#
# The check runs on the CPU. Decorators with `device_type="cuda"` watch CUDA's regions, and there is none here. Take the
# device from a tensor: `x.device.type`.
# </details>
#
# <details><summary>In which order do the decorators go?</summary>
#
# `@staticmethod` first, `@torch.amp.custom_fwd(device_type=…)` in the line below it.
# </details>
#
# <details><summary>y is float32 inside the region</summary>
#
# `cast_inputs=torch.float32` switches autocast off in forward: right for an operation that needs float32, not for a
# product. Leave it out.
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 25 minutes.*

# %% [markdown]
# ### 4.7 A rule for an operation of your own ●●○ 12 minutes
#
# Extensions bring operations of their own, and no list knows their names. This one refuses mixed dtypes, as compiled
# kernels do:


# %%
@torch.library.custom_op("lab04::plus", mutates_args=())
def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    assert x.dtype == y.dtype, "expected tensors of the same dtype"
    return x + y


# %% [markdown]
# Under autocast it gets whatever arrives. `torch.library.register_autocast(name, device_type, dtype)` adds a rule:
# inside a region of this device, the floating-point inputs are cast to this dtype. The name is a string such as
# `"lab04::plus"`. (`torch.amp.register_op_dtype`, which some tutorials use, does not exist.)


# %% exercise="04.register_casts"
def register_casts(policies: dict[str, str], device_type: str, low: torch.dtype) -> None:
    """Give custom operations their autocast rules.

    policies: name of an operation → "lower_precision" (cast to low) or "float32".
    device_type: such as "cpu". low: torch.float16 or torch.bfloat16.
    Outside of a region for this device, the operations stay as they are.
    """
    ### BEGIN SOLUTION
    for name, policy in policies.items():
        dtype = low if policy == "lower_precision" else torch.float32
        torch.library.register_autocast(name, device_type, dtype)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.register_casts", register_casts)

# %% [markdown]
# <details><summary>Nothing happens</summary>
#
# Did you pass on `device_type`? A rule for `"cuda"` has no effect on CPU tensors.
# </details>
#
# <details><summary>Inside it is right, outside it is not</summary>
#
# You replaced the operation itself. Register a rule instead, and leave the operation alone.
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 18 minutes.*

# %% [markdown]
# ## D Five bugs
#
# Five pieces of code, each with the message that it raises, or with none. Repair them; where autocast helps, keep it.
#
# ### 4.8 Bug 1: a buffer of another dtype ●○○ 8 minutes
#
# ```python
# def put_rows(buffer, rows, values, add):
#     if add:
#         buffer.index_add_(0, rows, values)
#     else:
#         buffer[rows] = values
# ```
#
# > RuntimeError: Index put requires the source and destination dtypes match, got Float for the destination and BFloat16
# > for the source.
#
# The buffer was made outside of the region, the values come from a layer inside. Assignments through an
# index tensor do not promote.


# %% exercise="04.put_rows"
def put_rows(buffer: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, add: bool) -> None:
    """Write values into rows of the buffer, or add them.

    buffer: shape (n, k), changed in place. rows: int64, shape (m,); with add=True a row may occur
    several times, and then all its values are added. values: shape (m, k).
    buffer and values are float16, bfloat16 or float32, and may differ. The buffer keeps its dtype.
    """
    ### BEGIN SOLUTION
    fitting = values.to(buffer.dtype)
    if add:
        buffer.index_add_(0, rows, fitting)
    else:
        buffer[rows] = fitting
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.put_rows", put_rows)

# %% [markdown]
# <details><summary>The buffer does not change</summary>
#
# `buffer = buffer.to(…)` makes a new tensor and gives it the old name. Convert the values instead.
# </details>
#
# <details><summary>A row that occurs twice is wrong</summary>
#
# `buffer[rows] += values` reads all rows, adds, and writes: the second write wins. `index_add_` adds both.
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 12 minutes.*

# %% [markdown]
# ### 4.9 Bug 2: NumPy has no bfloat16 ●○○ 6 minutes
#
# ```python
# def to_numpy(x):
#     return x.numpy()
# ```
#
# > TypeError: Got unsupported ScalarType BFloat16
#
# The output of the model goes to a plot or a metric. This line worked in float32 and in float16.


# %% exercise="04.to_numpy"
def to_numpy(x: torch.Tensor):
    """Convert a tensor to a NumPy array.

    x: any real dtype, on any device; it may require a gradient. bfloat16 becomes float32, which
    holds every bfloat16 number. All other dtypes stay as they are. Returns a numpy.ndarray.
    """
    ### BEGIN SOLUTION
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.to_numpy", to_numpy)

# %% [markdown]
# <details><summary>Can't call numpy() on Tensor that requires grad</summary>
#
# `x.detach()` is the same data without a history.
# </details>
#
# <details><summary>Large integers changed</summary>
#
# You convert everything to float32. It holds integers exactly only up to 2²⁴. Convert bfloat16 alone.
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 10 minutes.*

# %% [markdown]
# ### 4.10 Bug 3: a kernel that is missing ●●○ 12 minutes
#
# ```python
# def graph_layer(adjacency, features, weight):
#     return torch.sparse.mm(adjacency, features) @ weight
# ```
#
# > NotImplementedError: "addmm_out_sparse_csr_impl_mkl" not implemented for 'BFloat16'
#
# Behind `sparse.mm` is `addmm`, and `addmm` is on the lower-precision list. So autocast casts the inputs, float32 as
# they were, and for CSR on the CPU there is no kernel in 16 bits. Keep the sparse product in float32, and leave the
# dense one to autocast.


# %% exercise="04.graph_layer"
def graph_layer(adjacency: torch.Tensor, features: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply adjacency, features and weight.

    adjacency: sparse CSR, float32, shape (n, n). features: shape (n, k), float32 or 16 bits.
    weight: float32, shape (k, m). Returns shape (n, m), in the dtype that autocast gives
    the dense product; outside of a region, float32.
    """
    ### BEGIN SOLUTION
    with torch.autocast(features.device.type, enabled=False):
        spread = torch.sparse.mm(adjacency, features.float())
    return spread @ weight
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.graph_layer", graph_layer)

# %% [markdown]
# <details><summary>features.float() changes nothing</summary>
#
# The same as in 4.5: `addmm` casts them again. Switch the region off around the sparse product.
# </details>
#
# <details><summary>expected scalar type Float but found BFloat16</summary>
#
# Features that come from an earlier layer are in 16 bits already. In a region that is off, you must cast them yourself.
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 18 minutes.*

# %% [markdown]
# ### 4.11 Bug 4: a loss that is banned ●○○ 10 minutes
#
# ```python
# def yes_no_loss(logits, targets):
#     return F.binary_cross_entropy(logits.sigmoid(), targets)
# ```
#
# > RuntimeError: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.
#
# CUDA's autocast raises this on purpose; the CPU's does not, so the check raises it here. See what is so unsafe:

# %% tags=["nbval-check-output"]
logit = torch.tensor([9.0, 20.0])
for name, p in {"float32": logit.sigmoid(), "float16": logit.half().sigmoid()}.items():
    print(f"1 − sigmoid in {name}:", *(f"{rest:.6f}" for rest in (1 - p).tolist()))

# %% [markdown]
# The logarithm of 0 is minus infinity, and the gradient is lost. Do not take the logarithm of a rounded sigmoid: write
# the logarithm of the sigmoid as one formula. torch has it.


# %% exercise="04.yes_no_loss"
def yes_no_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean binary cross-entropy of logits.

    logits: before the sigmoid, shape (n, 1), any float dtype, up to 90 in magnitude.
    targets: float32, the same shape, 0 or 1. Returns a float32 tensor without dimensions,
    finite and with a gradient, inside and outside of a region.
    """
    ### BEGIN SOLUTION
    return F.binary_cross_entropy_with_logits(logits.float(), targets)
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.yes_no_loss", yes_no_loss)

# %% [markdown]
# <details><summary>Which function is it?</summary>
#
# Its name is the old name and what it takes: `F.binary_cross_entropy_with_logits`, as a module
# `torch.nn.BCEWithLogitsLoss`.
# </details>
#
# <details><summary>No error any more, and the loss is too large</summary>
#
# The sigmoid is still there, in float32: at 20 it is exactly 1 there too, and `binary_cross_entropy` cuts the logarithm
# at −100. Give the *logits* to the loss.
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 15 minutes.*

# %% [markdown]
# ### 4.12 Bug 5: training stands still ●●○ 12 minutes
#
# ```python
# def train(model, optimizer, batches):
#     losses = []
#     with torch.autocast("cpu", dtype=torch.bfloat16):
#         for x, y in batches:
#             optimizer.zero_grad()
#             loss = F.mse_loss(model(x), y)
#             loss.backward()
#             optimizer.step()
#             losses.append(loss.item())
#     return losses
# ```
#
# No message at all. With the same batch again and again, the loss is the same in every step, as if there were no
# optimizer. You know the cause from 4.4.


# %% exercise="04.train"
def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple]) -> list[float]:
    """Train on the CPU under autocast to bfloat16.

    batches: pairs (x, y), one for each step. The loss is F.mse_loss(model(x), y).
    Returns the losses in order, each as a float.
    """
    ### BEGIN SOLUTION
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            current = F.mse_loss(model(x), y)
        current.backward()
        optimizer.step()
        losses.append(current.item())
    return losses
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("04.train", train)

# %% [markdown]
# <details><summary>Why does the loss never change?</summary>
#
# The region keeps the cast weights until it ends. The optimizer changes the float32 weights, and the model goes on with
# the old casts. How long should a region live?
# </details>
#
# *Read [the solution](../solutions/04_autocast.ipynb) after 18 minutes.*

# %% [markdown]
# ## What you built
#
# Now let your functions run. A cell whose exercise is not finished says which one it waits for.
#
# First, your twenty predictions beside torch. `probe` runs an expression under the CUDA policy of the installed torch,
# on tensors without data, so it needs no GPU.

# %%
from ampedu.exercises import needs
from ampedu.exercises.casting import EXPRESSIONS

# %%
from ampedu.policy import probe


def probed(text):
    """The dtype of an expression of 4.1 under the CUDA policy."""
    made = "torch.zeros(16, device=device), torch.ones(16, device=device), torch.arange(16, device=device)"
    dtype = probe(f"(lambda x, w, h, mean, var, ids: {text})(x, y, x @ y, {made})", (16, 16), (16, 16))
    return str(dtype).removeprefix("torch.")


# %% tags=["nbval-check-output"]
with needs("04.predicted"):
    mine = {number: name for name, numbers in predicted().items() for number in numbers}
    torchs = {number: probed(text) for number, (text, _) in EXPRESSIONS.items()}
    for number, (text, _) in EXPRESSIONS.items():
        print(f"{text:40} you: {mine.get(number):8} torch: {torchs[number]}")
    assert mine == torchs, "one of the predictions is not what the installed torch does"

# %% [markdown]
# Next, your autocast and torch's on a transformer block. Each step of the block notes its dtype.


# %%
class Block(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, y, seen):
        normed = seen["norm 1"] = self.norm1(x)
        q, k, v = self.qkv(normed).chunk(3, dim=-1)
        attended = seen["attention"] = F.scaled_dot_product_attention(q, k, v)
        x = seen["sum 1"] = x + self.out(attended)
        normed = seen["norm 2"] = self.norm2(x)
        hidden = seen["gelu"] = F.gelu(self.up(normed))
        x = seen["sum 2"] = x + self.down(hidden)
        seen["mean"] = x.mean()
        seen["loss"] = F.mse_loss(x, y)
        return seen["loss"]


# %% [markdown]
# torch's own region runs on the CPU here, made to follow the CUDA policy. **Predict** the dtypes of attention, of the
# sums and of the normalizations.

# %%
from contextlib import ExitStack
from ampedu.policy import cuda_policy_on_cpu


def run(block, inputs, *regions):
    """Forward inside the regions, backward outside: the results by name."""
    seen = {}
    block.zero_grad()
    with ExitStack() as stack:
        for region in regions:
            stack.enter_context(region)
        loss = block(*inputs, seen)
    loss.backward()
    return {**seen, "gradient": block.up.weight.grad.clone()}


torch.manual_seed(seed)
block, inputs = Block(), torch.randn(2, 4, 8, 32).unbind()

# %% tags=["nbval-check-output"]
with needs("04.own_autocast"):
    mine = run(block, inputs, MyAutocast(torch.float16))
    torchs = run(block, inputs, cuda_policy_on_cpu(torch.float16), torch.autocast("cpu", dtype=torch.float16))
    print(f"{'':10} yours          torch's")
    for name, value in mine.items():
        print(f"{name:10} {value.dtype}  {torchs[name].dtype}")
        assert value.dtype == torchs[name].dtype
    torch.testing.assert_close(mine["gradient"], torchs["gradient"], rtol=0.01, atol=1e-4)

# %% [markdown]
# The gradient of a weight is float32, although the product that made it ran in float16: the cast is a step of the graph
# like any other, and its backward casts back.
#
# Now count. A mode below autocast sees every copy from one dtype to another.

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class Copies(TorchDispatchMode):
    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


# %% tags=["nbval-check-output"]
layer = torch.nn.Linear(4, 4)
with needs("04.count_casts"):
    for cache in (True, False):
        with Copies() as copies, torch.autocast("cpu", dtype=torch.float16, cache_enabled=cache):
            for _ in range(3):
                layer(x)
        calls = ["enter", *[["input", "weight", "bias"]] * 3, "leave"]
        print(f"cache {cache!s:5}  you: {count_casts(TENSORS, calls, cache)}  torch: {copies.number}")

# %% [markdown]
# Your rule for the operation of 4.7:

# %% tags=["nbval-check-output"]
with needs("04.register_casts"):
    register_casts({"lab04::plus": "lower_precision"}, "cpu", torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        print("inside:", plus(x, x.half()).dtype)
    print("outside:", plus(x, x).dtype)

# %% [markdown]
# Last, the loop that stood still, and yours. The task: a linear model should learn to add four numbers, from the same
# sixteen examples in each of five steps.


# %%
examples = torch.randint(-2, 3, (16, 4), generator=torch.Generator().manual_seed(seed)).float()


def trained(how):
    """The losses of a new model; how: a function like train."""
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    batches = [(examples, examples.sum(dim=1, keepdim=True))] * 5
    return how(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)


# %%
with needs("04.train"):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        still = trained(train)  # a second region, around the whole loop
    moving = trained(train)
    print("around the loop:", *(f"{loss:6.2f}" for loss in still))
    print("in each step:   ", *(f"{loss:6.2f}" for loss in moving))
    assert len(set(still)) == 1 and moving[-1] < moving[0] / 2

# %% [markdown]
# In the first row, your repaired loop stands still again: somebody opened a second region around it, and only the end
# of the outermost region empties the cache. Look for one when you use a training framework.
#
# **Sources.** [torch.amp](https://docs.pytorch.org/docs/stable/amp.html): the documented lists ·
# [Automatic mixed precision examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html): custom autograd
# functions · [torch.library](https://docs.pytorch.org/docs/stable/library.html): `register_autocast` ·
# [Extending PyTorch](https://docs.pytorch.org/docs/stable/notes/extending.html): function and dispatch modes.
#
# Back to [lesson 4](../notebooks/04_autocast.ipynb), or on to lesson 5, where small gradients are saved.
