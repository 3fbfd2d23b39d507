# %% [markdown]
# # 0 Start here
#
# In a quarter of an hour you will know what this machine can show you, and you will have run one correct
# mixed-precision training step. Everything works without a GPU; what only a GPU can show is marked.
#
# **You will be able to** read the machine report · run a correct AMP step and name the dtype of every tensor in it ·
# answer a quiz, read a check and find your way through the course.
#
# *15 minutes · you have trained a small network in PyTorch before · runs in 8 s on two cores*

# %% tags=["parameters"]
device = "auto"
seed = 0

# %% [markdown]
# ## 0.1 What can this machine do?
#
# Run the cells from the top of the page, one after the other: click into the first one with code and press **Shift +
# Enter**; that takes you to the next one. (*Run All Cells* in the menu *Run* runs the whole page.)
#
# The outputs that you see before you run anything were stored when this page was made, on another machine. To keep
# them from giving an answer away, clear them now: *Edit → Clear Outputs of All Cells* (Colab: *Clear all outputs*).

# %% tags=["measured"]
from ampedu.doctor import show

show()

# %% [markdown]
# **How to read it.** *OK* needs nothing from you. A *note* is something worth knowing, such as a missing GPU: the
# course still works. A *problem* comes with its cure in the same line. Outside a notebook, the same report is `ampedu
# doctor`.
#
# Each lesson begins with a shorter card: what it can measure on your machine.

# %% tags=["measured"]
from ampedu.device import resolve, this_machine

device = resolve(device)
this_machine(device).card("Every dtype in this lesson is the same on all machines. Nothing here depends on speed.")

# %% [markdown]
# ## 0.2 A 60-second taste
#
# A training script counts the samples that it has seen: 70 000 ones, added up, in three formats.
#
# **Predict** before you run. This is how the whole course works: commit to an answer, run, then read why.

# %%
from ampedu.widgets import quiz

quiz("00.count")

# %% tags=["nbval-check-output"]
import torch

for dtype in (torch.float32, torch.bfloat16, torch.float16):
    total = torch.ones(70_000, dtype=dtype, device=device).sum()
    print(f"{total.item():8}  {dtype}")

# %% [markdown]
# **Explain.** float16 ends at 65 504, so the sum is infinite. bfloat16 reaches much further, but at this size its
# numbers lie 512 apart, and 70 000 is not one of them: the nearest is 70 144 = 137 · 512. (`eps` is the gap above 1.
# From $2^{16} = 65\,536$ on, the gap is $2^{16}$ times as wide. Lesson 1 shows why.)

# %% tags=["nbval-check-output"]
print(torch.finfo(torch.float16).max, 2**16 * torch.finfo(torch.bfloat16).eps, 137 * 512)

# %% [markdown]
# No error, no warning. Two 16-bit formats, two different ways to be wrong: one lacks **range**, the other
# **precision**. Mixed precision is the art of using them for speed and memory, and of keeping float32 where it matters.
#
# ## 0.3 Where we are going: one correct step
#
# AMP, *automatic mixed precision*, is PyTorch's way to do this. Here is a network that fits in one line, its optimizer,
# and a scaler.

# %%
from torch import nn

torch.manual_seed(seed)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device, init_scale=4096.0)  # a low start: this tiny model then skips no step

# %%
inputs = torch.randn(64, 8, device=device)
targets = inputs.mean(dim=1, keepdim=True)

# %% [markdown]
# **autocast** picks a dtype for each operation: matrix products run in float16, and what needs care stays in float32.
# **GradScaler** multiplies the loss, so that small gradients do not vanish in float16, and divides the gradients again
# before the optimizer uses them.
#
# **Predict.** The step below has a forward pass under autocast, then `backward()`.

# %%
quiz("00.gradient_dtype")

# %%
before = model[0].weight.detach().clone()
with torch.autocast(device, dtype=torch.float16):
    hidden = model[0](inputs)
    prediction = model[1:](hidden)
    loss = nn.functional.mse_loss(prediction, targets)
scaler.scale(loss).backward()

# %% tags=["nbval-check-output"]
weight = model[0].weight
tensors = {"activation": hidden, "prediction": prediction, "loss": loss, "weight": weight, "its gradient": weight.grad}
for name, tensor in tensors.items():
    print(f"{name:12}  {tensor.dtype}")
assert hidden.dtype == prediction.dtype == torch.float16
assert loss.dtype == weight.dtype == weight.grad.dtype == torch.float32

# %% [markdown]
# **Explain.** The linear layers ran in float16, so their results are float16. The loss averages many squares, which
# needs care: float32. The parameters never left float32; autocast made float16 copies for the products. And a gradient
# has the dtype of its parameter, so it is float32 too.
#
# The gradient is still scaled. The second half of the step undoes that, looks for infinities, and moves the weights
# only if there are none.

# %% tags=["nbval-check-output"]
scaled = weight.grad.clone()
scaler.unscale_(optimizer)
alive = weight.grad != 0
print("scaled / unscaled:", (scaled[alive] / weight.grad[alive]).unique().tolist())

# %% tags=["nbval-check-output"]
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
print("the weights moved:", not torch.equal(before, weight))
assert not torch.equal(before, weight) and scaler.get_scale() == 4096.0

# %% [markdown]
# That was the whole step. The order of the calls matters, and each arrow in this picture carries one dtype. Clipping,
# which our step left out, goes between `unscale_` and `step`. (The picture shows a GPU. On a CPU, autocast leaves
# softmax in float16.)

# %%
from ampedu.plots import amp_step

amp_step()

# %% [markdown]
# Does it learn? The same step, forty times:

# %%
losses = [loss.item()]
for _ in range(40):
    with torch.autocast(device, dtype=torch.float16):
        loss = nn.functional.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    losses.append(loss.item())

# %%
print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}")
assert losses[-1] < losses[0] / 2

# %% [markdown]
# None of this needed a GPU. Three things depend on one: whether the step is *faster* (lesson 3), which operations
# autocast keeps in float32 (the lists for CPU and CUDA differ: lesson 4), and how much memory it takes (lesson 7).
#
# ## 0.4 How quizzes, labs and checks work
#
# **Quizzes.** You have answered two. Choose, then press the button; every option gets a reason, the wrong ones too.
# Here is one to play with.

# %%
quiz("00.toy")

# %% [markdown]
# **Labs.** A lab is a notebook with holes. A hole raises `NotImplementedError` and says what to write; the cell below
# it calls `check`. This one is from lab 1. Attention masks need a number so low that softmax makes it zero, and you
# have not begun:


# %%
def mask_scores(scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("01.mask_scores: Replace hidden scores by the most negative finite number.")


# %%
from ampedu.exercises import check

check("01.mask_scores", mask_scores)

# %% [markdown]
# *Not started* stops nothing: *Run All* reaches the end. Now an answer that is in many code bases:


# %%
def mask_scores(scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(hidden, -1e9)


# %%
check("01.mask_scores", mask_scores)

# %% [markdown]
# A check runs your function on several inputs. If your results are those of a known misconception, it names it; if not,
# it shows the first input where you differ. You may check as often as you like.
#
# **Hints** are folded below each exercise, and their titles are symptoms. Open the one that you see:
#
# <details><summary>RuntimeError: value cannot be converted …</summary>
#
# What is the largest number of the dtype that came in? `torch.finfo` knows. (A hint asks the question that finds the
# mistake; it does not give the answer away.)
# </details>
#
# Each exercise has a difficulty (●○○ to ●●●) and minutes. When the minutes are over, read the solution with a clear
# conscience.
#
# **Progress** is a file of your own on this machine; nothing is sent anywhere. The try above is noted there, and costs
# nothing. `ampedu progress` shows the file, `ampedu exercises` lists what there is. `ampedu reset 01_bit_layouts` gives
# you a fresh lab and keeps a backup of yours. These are commands for a terminal. In a cell of a notebook you can write
# `%run -m ampedu progress` instead.
#
# ## The map
#
# | part | lesson | what it settles | minutes | lab |
# |---|---|---|---|---|
# | | **0 Start here** | this page | 15 | |
# | Numbers | [**1 Bit layouts**][lesson1] | formats | 45 | [lab 1][lab1], 125 |
# | | [**2 Where precision is lost**][lesson2] | sums, weight updates, softmax, variance | 45 | [lab 2][lab2], 136 |
# | Hardware | [**3 Tensor Cores and when they help**][lesson3] | when it is faster | 45 | [lab 3][lab3], 127 |
# | AMP | [**4 Autocast and its op lists**][lesson4] | which operation runs in which dtype | 45 | [lab 4][lab4], 165 |
# | | [**5 Dynamic loss scaling**][lesson5] | why float16 needs a scaler | 45 | [lab 5][lab5], 144 |
# | | [**6 The order of a step**][lesson6] | clipping, accumulation, several optimizers | 45 | [lab 6][lab6], 144 |
# | | [**7 Speed and memory of a real model**][lesson7] | the ledger, predicted and measured | 50 | [lab 7][lab7], 182 |
# | Scale | [**8 DDP and sharding**][lesson8] | what is sent, in which dtype | 45 | [lab 8][lab8], 149 |
# | Practice | 9 When training breaks | symptom, cause, test, cure | 45 | *planned* |
# | | 10 Inference, checkpoints, production | what to save, how to resume | 45 | *planned* |
# | | 11 FP8, MX and NVFP4 | eight bits and fewer | 45 | *planned* |
# | | 12 Sixty-three claims on trial | what tutorials say, and what is true | 45 | |
# | | 13 Capstone | train two models with all of it | | *planned* |
#
# Bold lessons exist; the others are planned, lessons and labs alike. In a hurry? Lesson 1 marks a path of 20 minutes.
#
# [lesson1]: 01_bit_layouts.ipynb
# [lab1]: ../labs/01_bit_layouts.ipynb
# [lesson2]: 02_where_precision_is_lost.ipynb
# [lab2]: ../labs/02_where_precision_is_lost.ipynb
# [lesson3]: 03_tensor_cores.ipynb
# [lab3]: ../labs/03_tensor_cores.ipynb
# [lesson4]: 04_autocast.ipynb
# [lab4]: ../labs/04_autocast.ipynb
# [lesson5]: 05_dynamic_loss_scaling.ipynb
# [lab5]: ../labs/05_dynamic_loss_scaling.ipynb
# [lesson6]: 06_order_of_a_step.ipynb
# [lab6]: ../labs/06_order_of_a_step.ipynb
# [lesson7]: 07_speed_and_memory.ipynb
# [lab7]: ../labs/07_speed_and_memory.ipynb
# [lesson8]: 08_ddp_and_sharding.ipynb
# [lab8]: ../labs/08_ddp_and_sharding.ipynb
#
# ## Where to run it
#
# - **Your machine.** `make learn` in a clone of the course makes an environment and opens this page. It needs no GPU,
#   and after the installation no internet.
# - **Google Colab.** Open a notebook by its badge. The setup cell at the top installs the course's helper and nothing
#   else: Colab's own PyTorch stays. For a GPU choose *Runtime → Change runtime type*. Save a copy to your Drive, or
#   your answers are gone when the runtime ends.
# - **A GPU machine.** `make learn` keeps a PyTorch that is already installed. `device = "auto"` takes the GPU if there
#   is one; write `"cpu"` instead of `"auto"` at the top of the page to compare.
# - **No notebook at all.** The pages on GitHub show all outputs; widgets appear there as still pictures, quizzes as
#   folded answers.
#
# ## What to take away
#
# - 16-bit formats fail silently: float16 for lack of range, bfloat16 for lack of precision.
# - In a correct AMP step the results of matrix products are low precision; parameters, gradients and, for most losses,
#   the loss are float32.
# - The loss is scaled before `backward`, the gradients are unscaled before the optimizer sees them, and a step with an
#   infinity or a NaN is skipped.
# - Predict, run, explain.
#
# **Next:** [lesson 1](01_bit_layouts.ipynb), where the numbers come from. **Sources:**
# [torch.amp](https://docs.pytorch.org/docs/stable/amp.html) · [Micikevicius et al. 2017, *Mixed Precision
# Training*](https://arxiv.org/abs/1710.03740)
