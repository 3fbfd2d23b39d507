# %% [markdown]
# # Lab 6 Bug clinic A: the order of a step
#
# Ten people trained in float16 with a scaler, and something went wrong. Their loops are here, shortened; the mistakes
# are theirs, from public bug reports. You find out what each of them has, and heal it.
#
# **You will be able to** tell from a symptom which call is in the wrong place · repair clipping, accumulation, skipping
# and several optimizers · make accumulation equal to one big batch · write a GAN step and a gradient penalty that do
# not depend on the scale.
#
# *144 minutes · the diagnoses and five patients make a good first session · after lesson 6 · runs on every machine*

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
# | A Ward round | 6.1 Ten diagnoses | ●●○ | 20 | 4 |
# | B Repairs | 6.2 Patient 1: the loss is flat | ●○○ | 10 | 2 |
# | | 6.3 Patient 2: it worked before we accumulated | ●○○ | 8 | 2 |
# | | 6.4 Patient 3: update() complains | ●○○ | 6 | 1 |
# | | 6.5 Patient 4: the weights explode | ●○○ | 6 | 1 |
# | | 6.6 Patient 5: one head does not learn | ●○○ | 6 | 1 |
# | | 6.7 Patient 6: the learning rate runs ahead | ●●○ | 10 | 2 |
# | | 6.8 Patient 7: careful, and dead after the first overflow | ●●○ | 8 | 2 |
# | | 6.9 Patient 8: the backbone is frozen at first | ●●○ | 8 | 2 |
# | | 6.10 Patient 9: the second optimizer stumbles | ●●○ | 6 | 1 |
# | | 6.11 Patient 10: everything is float16 | ●○○ | 6 | 1 |
# | C Your own steps | 6.12 As if it were one big batch | ●●○ | 15 | 3 |
# | | 6.13 A step of a GAN | ●●● | 15 | 3 |
# | | 6.14 A gradient penalty | ●●● | 20 | 4 |
#
# **How checking works.** Replace the line that raises `NotImplementedError`, run the cell, then run the check below
# it, as often as you like. An exercise that you have not begun says so and stops nothing: *Run All* always reaches the
# end.
#
# The check trains tiny models with plain SGD and looks at how far the weights moved: under SGD an update is as wrong as
# the gradient. In some cases one batch overflows. Then that step must be skipped, the weights must stay, and the
# scale must be halved.

# %%
import torch
from ampedu.exercises import check

# %% [markdown]
# ## A Ward round
#
# All patients but three compute their loss with this function. It is healthy: the region ends before backward begins.


# %%
def forward(model, batch, loss_fn):
    """The loss of one batch (x, y), computed under autocast to float16."""
    x, y = batch
    with torch.autocast(x.device.type, dtype=torch.float16):
        return loss_fn(model(x), y)


# %% [markdown]
# Read each loop, and stop where you would have written something else. Each has **one** mistake. Below it, `symptom`
# calls it as the first case of its check does: a model of two to six weights, a few batches. It tells how far each
# weight moved, in units of the learning rate, or the error. In a healthy loop that is the sum of a few gradients,
# between 0.01 and 100.

# %%
from ampedu.exercises.clinic import symptom

# %% [markdown]
# **Patient 1.** "The loss has been flat since I switched AMP on. No error. Ten times the `max_norm`: flat, too."


# %%
def patient_1(model, batch, loss_fn, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    loss = forward(model, batch, loss_fn)
    scaler.scale(loss).backward()
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total.item()


# %% tags=["nbval-check-output"]
symptom("06.clipped_step", patient_1)

# %% [markdown]
# **Patient 2.** "It worked. Then I accumulated gradients over `steps` micro-batches, and now it stops with an error."


# %%
def patient_2(model, batches, loss_fn, optimizer, scaler, steps, max_norm):
    for index, batch in enumerate(batches):
        loss = forward(model, batch, loss_fn) / steps
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if (index + 1) % steps == 0:
            scaler.step(optimizer)
            scaler.update()
            model.zero_grad()


# %% tags=["nbval-check-output"]
symptom("06.patient_2", patient_2)

# %% [markdown]
# **Patient 3.** "I accumulate as well, without clipping. I get an error, too, but another one."


# %%
def patient_3(model, batches, loss_fn, optimizer, scaler, steps):
    for index, batch in enumerate(batches):
        loss = forward(model, batch, loss_fn) / steps
        scaler.scale(loss).backward()
        if (index + 1) % steps == 0:
            scaler.step(optimizer)
            model.zero_grad()
        scaler.update()


# %% tags=["nbval-check-output"]
symptom("06.patient_3", patient_3)

# %% [markdown]
# **Patient 4.** "I took a working loop and added the scaler. The loss goes up to infinity at once."


# %%
def patient_4(model, batches, loss_fn, optimizer, scaler):
    for batch in batches:
        optimizer.zero_grad()
        loss = forward(model, batch, loss_fn)
        scaler.scale(loss).backward()
        optimizer.step()


# %% tags=["nbval-check-output"]
symptom("06.patient_4", patient_4)

# %% [markdown]
# **Patient 5.** "My model has two heads. The main one learns. The side one does nothing, whatever its weight is."


# %%
def patient_5(model, batches, loss_fn, optimizer, scaler, weight):
    for x, y, z in batches:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=torch.float16):
            main, side = model(x)
            loss, extra = loss_fn(main, y), weight * loss_fn(side, z)
        scaler.scale(loss).backward(retain_graph=True)
        extra.backward()
        scaler.step(optimizer)
        scaler.update()


# %% tags=["nbval-check-output"]
symptom("06.patient_5", patient_5)

# %% [markdown]
# **Patient 6.** "torch warns that I call `lr_scheduler.step()` before `optimizer.step()`. I do not!"


# %%
def patient_6(model, batches, loss_fn, optimizer, scaler, scheduler):
    for batch in batches:
        optimizer.zero_grad()
        loss = forward(model, batch, loss_fn)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


# %% tags=["nbval-check-output"]
symptom("06.patient_6", patient_6)

# %% [markdown]
# **Patient 7.** "I am careful: a step whose norm is not finite, I skip myself. Training died after an hour."


# %%
def patient_7(model, batches, loss_fn, optimizer, scaler, max_norm):
    for batch in batches:
        optimizer.zero_grad()
        loss = forward(model, batch, loss_fn)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if not torch.isfinite(norm):
            continue
        scaler.step(optimizer)
        scaler.update()


# %% tags=["nbval-check-output"]
symptom("06.patient_7", patient_7)

# %% [markdown]
# **Patient 8.** "The backbone is frozen for the first `thaw` batches. The optimizers are those of the backbone and of
# the head. It dies at once. Without freezing it runs."


# %%
def patient_8(backbone, head, batches, loss_fn, optimizers, scaler, thaw):
    for index, batch in enumerate(batches):
        backbone.requires_grad_(index >= thaw)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = forward(torch.nn.Sequential(backbone, head), batch, loss_fn)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()


# %% tags=["nbval-check-output"]
symptom("06.patient_8", patient_8)

# %% [markdown]
# **Patient 9.** "Two heads, an optimizer for each, one backward. Now and then the second head takes a step of
# the wrong size. When both overflow, the scale falls to a quarter at once."


# %%
def patient_9(model, batches, loss_fn, optimizers, scaler):
    for x, y, z in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=torch.float16):
            main, side = model(x)
            loss = loss_fn(main, y) + loss_fn(side, z)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            scaler.update()


# %% tags=["nbval-check-output"]
symptom("06.patient_9", patient_9)

# %% [markdown]
# **Patient 10.** "To save memory I made the model float16. There is an error in the first step."


# %%
def patient_10(model, batches, loss_fn, optimizer, scaler):
    model.half()
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x.half()), y.half())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


# %% tags=["nbval-check-output"]
symptom("06.patient_10", patient_10)

# %% [markdown]
# ### 6.1 Ten diagnoses ●●○ 20 minutes
#
# Which mistake is it? Some letters are left over, none is used twice.
#
# | | mistake |
# |---|---|
# | a | gradients are never zeroed, and add up from step to step |
# | b | the schedule moves on although the optimizer did not step |
# | c | a step is skipped by hand, and the scaler never hears of it |
# | d | one loss is not scaled, but its gradients are unscaled with the others |
# | e | the optimizer is called directly: it takes the scaled gradients as they are |
# | f | the loss is not divided by the number of micro-batches |
# | g | the same gradients are unscaled again before an update |
# | h | the region stays open during backward and step |
# | i | clipping sees the scaled gradients |
# | j | the scaler is updated although it has not looked at any gradient since the last update |
# | k | an optimizer is stepped that has no gradients |
# | l | every step makes a new scaler |
# | m | trainable parameters are float16 |
# | n | the scale changes between two optimizers that share one backward |
# | o | gradients are thrown away between backward and step |
# | p | `scaler.step` is called, and the scaler is never updated |


# %% exercise="06.diagnoses"
def diagnoses() -> dict[str, str]:
    """Name the mistake of each patient.

    Returns a dict with the keys "patient 1" to "patient 10"; each value is one letter.
    """
    ### BEGIN SOLUTION
    return {
        "patient 1": "i",
        "patient 2": "g",
        "patient 3": "j",
        "patient 4": "e",
        "patient 5": "d",
        "patient 6": "b",
        "patient 7": "c",
        "patient 8": "k",
        "patient 9": "n",
        "patient 10": "m",
    }
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.diagnoses", diagnoses)

# %% [markdown]
# <details><summary>Patients 2 and 7 have the same error</summary>
#
# And different causes. `unscale_` may run once between two updates. Who calls it twice, and who leaves an update out?
# </details>
#
# <details><summary>Patients 3 and 8 have nearly the same error</summary>
#
# Both times, the scaler has seen no gradient. Of one patient it has not looked yet; of the other, there is none.
# </details>
#
# <details><summary>There is no error at all</summary>
#
# Follow the gradients in units of the scale. After `scaler.scale(loss).backward()` they are too large by the scale,
# after unscaling they are not. Which line sees them at the wrong time?
# </details>
#
# [Lesson 6](../notebooks/06_order_of_a_step.ipynb) shows what each wrong order does.
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 30 minutes.*

# %% [markdown]
# ## B Repairs
#
# Copy the patient's loop into the answer, and change what is wrong. Keep float16 and the scaler: a loop that no longer
# uses them is not healed.
#
# ### 6.2 Patient 1: the loss is flat ●○○ 10 minutes
#
# Write one training step with clipping, from the first line to the last, the region included. The norm that it returns
# goes to a log, where people compare it between runs with different scales.


# %% exercise="06.clipped_step"
def clipped_step(model, batch, loss_fn, optimizer, scaler, max_norm: float) -> float:
    """Train one step, with clipping.

    It runs under autocast to float16, with the gradients clipped to max_norm. batch: a pair of
    tensors (inputs, targets). loss_fn: of (outputs, targets). scaler: a torch.amp.GradScaler.
    Returns the norm of all gradients before clipping, in units of the unscaled loss; it is not
    finite if the step is skipped.
    """
    ### BEGIN SOLUTION
    inputs, targets = batch
    optimizer.zero_grad()
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        current = loss_fn(model(inputs), targets)
    scaler.scale(current).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm.item()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.clipped_step", clipped_step)

# %% [markdown]
# <details><summary>My loss is flat and there is no error</summary>
#
# Print the norm that clipping returned. Is it near 1, or a hundred times as much? Whose units is it in?
# </details>
#
# <details><summary>The norm is right and the weights are not</summary>
#
# `scaler.step` unscales only if nobody has done so since the last update. Did you divide by the scale yourself? The
# scaler does not know of it.
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 15 minutes.*

# %% [markdown]
# ### 6.3 Patient 2: it worked before we accumulated ●○○ 8 minutes
#
# The gradients of one window must all be scaled by the same number, until the last one has been added. Every window
# is complete: the number of batches is a multiple of `steps`.


# %% exercise="06.patient_2"
def repaired_2(model, batches, loss_fn, optimizer, scaler, steps: int, max_norm: float) -> None:
    """Train with accumulation and clipping.

    batches: a list of pairs, all of the same size. After every steps of them, the optimizer steps
    once with the mean of their gradients, clipped to max_norm.
    """
    ### BEGIN SOLUTION
    for index, batch in enumerate(batches):
        scaler.scale(forward(model, batch, loss_fn) / steps).backward()
        if index % steps == steps - 1:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.patient_2", repaired_2)

# %% [markdown]
# <details><summary>I called update() after every unscale_, and the error is gone</summary>
#
# It is, but the gradients that are there already are divided by the scale once more with every micro-batch. Which of
# the lines make sense only when the window is complete?
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 12 minutes.*

# %% [markdown]
# ### 6.4 Patient 3: update() complains ●○○ 6 minutes
#
# One step, one update. `update` decides by the gradients that the scaler has looked at since the last update.


# %% exercise="06.patient_3"
def repaired_3(model, batches, loss_fn, optimizer, scaler, steps: int) -> None:
    """Train with accumulation.

    batches: a list of pairs, all of the same size; every window of steps of them is complete. The
    optimizer steps once for each window, with the mean of its gradients.
    """
    ### BEGIN SOLUTION
    for index, batch in enumerate(batches):
        scaler.scale(forward(model, batch, loss_fn) / steps).backward()
        if index % steps == steps - 1:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.patient_3", repaired_3)

# %% [markdown]
# <details><summary>No error any more, and the weights are wrong</summary>
#
# Did you move `scaler.step` out of the window too? It unscales the gradients in place, and the next micro-batch adds
# scaled ones.
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 10 minutes.*

# %% [markdown]
# ### 6.5 Patient 4: the weights explode ●○○ 6 minutes
#
# Somebody told this patient to lower the learning rate by the scale. Why is that no cure, even when the numbers fit?


# %% exercise="06.patient_4"
def repaired_4(model, batches, loss_fn, optimizer, scaler) -> None:
    """Train with a scaler.

    batches: a list of pairs. One step for each, which is skipped if a gradient overflows.
    """
    ### BEGIN SOLUTION
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        scaler.step(optimizer)
        scaler.update()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.patient_4", repaired_4)

# %% [markdown]
# <details><summary>Only the case with an overflow is wrong</summary>
#
# `optimizer.step()` steps always. Who decides that a step is skipped?
# </details>
#
# <details><summary>Only the small loss is wrong</summary>
#
# Its gradients are too small for float16. They must be scaled *before* backward.
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 10 minutes.*

# %% [markdown]
# ### 6.6 Patient 5: one head does not learn ●○○ 6 minutes
#
# `scaler.step` divides all gradients of the optimizer by the scale. What if some were never multiplied?


# %% exercise="06.patient_5"
def repaired_5(model, batches, loss_fn, optimizer, scaler, weight: float) -> None:
    """Train a model with two heads.

    batches: a list of triples (x, y, z). model(x) gives two outputs, the second one for z.
    The loss is loss_fn(main, y) + weight * loss_fn(side, z). One step for each batch.
    """
    ### BEGIN SOLUTION
    for x, y, z in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            main, side = model(x)
            total = loss_fn(main, y) + weight * loss_fn(side, z)
        optimizer.zero_grad()
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.patient_5", repaired_5)

# %% [markdown]
# <details><summary>Now every step is skipped</summary>
#
# Is the second loss scaled twice? `scaler.scale(a + scaler.scale(b))` multiplies `b` by the square of the scale.
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 10 minutes.*

# %% [markdown]
# ### 6.7 Patient 6: the learning rate runs ahead ●●○ 10 minutes
#
# The first steps of a run are often skipped. A schedule with a warm-up of 10 steps should not spend them on nothing.
# `scaler.step` returns None, whether it stepped or not. What does `update` change after a skip?


# %% exercise="06.patient_6"
def repaired_6(model, batches, loss_fn, optimizer, scaler, scheduler) -> None:
    """Train with a learning rate schedule.

    batches: a list of pairs. One step for each, which is skipped if a gradient overflows. The
    scheduler steps as often as the optimizer.
    """
    ### BEGIN SOLUTION
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= before:
            scheduler.step()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.patient_6", repaired_6)

# %% [markdown]
# <details><summary>Only the cases with growth_interval are wrong</summary>
#
# The scale also changes when all is well: it grows. Only a scale that *fell* means a skip.
# </details>
#
# <details><summary>The learning rate is as it was</summary>
#
# When do you read the old scale? After `update` it is the new one.
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 15 minutes.*

# %% [markdown]
# ### 6.8 Patient 7: careful, and dead after the first overflow ●●○ 8 minutes
#
# The scale is meant to be too large now and then. Then the scaler must learn of it, or it will be too large for ever.


# %% exercise="06.patient_7"
def repaired_7(model, batches, loss_fn, optimizer, scaler, max_norm: float) -> None:
    """Train with clipping, and with skipped steps.

    batches: a list of pairs. One step for each, clipped to max_norm; if a gradient overflows, it is
    skipped and the scale is halved.
    """
    ### BEGIN SOLUTION
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.patient_7", repaired_7)

# %% [markdown]
# <details><summary>What shall I put in place of the test?</summary>
#
# Nothing. `unscale_` looks for infinities, `step` skips, `update` halves the scale. If you want to keep the test for
# your log, keep the last two calls out of it.
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 12 minutes.*

# %% [markdown]
# ### 6.9 Patient 8: the backbone is frozen at first ●●○ 8 minutes
#
# An optimizer whose parameters have no gradients cannot be checked for infinities. The scaler takes this for a mistake,
# and most of the time it is right.


# %% exercise="06.patient_8"
def repaired_8(backbone, head, batches, loss_fn, optimizers: list, scaler, thaw: int) -> None:
    """Train a head, and later the backbone below it too.

    batches: a list of pairs. The backbone is frozen in the first thaw of them, then both are
    trained. optimizers: that of the backbone and that of the head. One update of the scaler for each batch.
    """
    ### BEGIN SOLUTION
    model = torch.nn.Sequential(backbone, head)
    for index, batch in enumerate(batches):
        backbone.requires_grad_(index >= thaw)
        active = optimizers if index >= thaw else optimizers[1:]
        model.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        for optimizer in active:
            scaler.step(optimizer)
        scaler.update()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.patient_8", repaired_8)

# %% [markdown]
# <details><summary>How do I know which optimizer has gradients?</summary>
#
# Here `thaw` tells. In general:
# `any(p.grad is not None for group in optimizer.param_groups for p in group["params"])`.
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 12 minutes.*

# %% [markdown]
# ### 6.10 Patient 9: the second optimizer stumbles ●●○ 6 minutes
#
# One backward, one scale: all gradients were multiplied by the same number, and must be divided by it.


# %% exercise="06.patient_9"
def repaired_9(model, batches, loss_fn, optimizers: list, scaler) -> None:
    """Train two heads with an optimizer for each.

    batches: a list of triples (x, y, z). model(x) gives two outputs, the second one for z.
    The loss is loss_fn(main, y) + loss_fn(side, z). An optimizer whose own gradients overflow is
    skipped, the other one is not.
    """
    ### BEGIN SOLUTION
    first, second = optimizers
    for x, y, z in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            main, side = model(x)
            total = loss_fn(main, y) + loss_fn(side, z)
        model.zero_grad()
        scaler.scale(total).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.patient_9", repaired_9)

# %% [markdown]
# <details><summary>The first head is right, the second one is off by a factor of 2 in some steps</summary>
#
# `scaler.step` divides by the scale of now. Is it still the one of backward?
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 10 minutes.*

# %% [markdown]
# ### 6.11 Patient 10: everything is float16 ●○○ 6 minutes
#
# The error of the scaler is a favor. Without it, the updates here would be lost: near 32 the float16 numbers are 1/64
# apart or more. Which memory does autocast save, and which copy of the weights stays float32?


# %% exercise="06.patient_10"
def repaired_10(model, batches, loss_fn, optimizer, scaler) -> None:
    """Train with float16 products and float32 weights.

    model: its weights are float32, and stay so. batches: a list of pairs. One step for each.
    """
    ### BEGIN SOLUTION
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(forward(model, batch, loss_fn)).backward()
        scaler.step(optimizer)
        scaler.update()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.patient_10", repaired_10)

# %% [markdown]
# <details><summary>My model is given to me in float16 by a library</summary>
#
# Call `model.float()` before you make the optimizer, and let autocast cast in the forward. If only a part is trained,
# such as an adapter, only that part has to be float32.
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 10 minutes.*

# %% [markdown]
# ## C Your own steps
#
# ### 6.12 As if it were one big batch ●●○ 15 minutes
#
# Accumulation is meant to give the update of one big batch. Patients 2 and 3 divided by `steps`, and that is right as
# long as all micro-batches are equally large. Batches of text are not: they have different numbers of tokens. And the
# number of batches is rarely a multiple of `steps`, so the last window is smaller.
#
# `loss_fn` gives the **mean** over the rows of a batch, and the big batch would have taken the mean over all rows of
# the window.


# %% exercise="06.accumulate"
def accumulate(model, batches: list, loss_fn, optimizer, scaler, steps: int) -> None:
    """Train with accumulation.

    batches: a list of pairs (x, y) with different numbers of rows. Each window of steps of them is
    one step, as if it were one batch. The last window may be smaller, and is a step like the
    others. loss_fn: a mean over rows.
    """
    ### BEGIN SOLUTION
    for start in range(0, len(batches), steps):
        window = batches[start : start + steps]
        rows = sum(len(x) for x, _ in window)
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(forward(model, (x, y), loss_fn) * (len(x) / rows)).backward()
        scaler.step(optimizer)
        scaler.update()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.accumulate", accumulate)

# %% [markdown]
# <details><summary>Only windows with unequal batches are wrong</summary>
#
# A mean of means is not the mean. Give each batch the weight of its rows: its rows divided by those of the window.
# </details>
#
# <details><summary>Only the last window is wrong</summary>
#
# Is there a step at all after the last batch? And does it divide by what is really there, or by `steps`?
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 20 minutes.*

# %% [markdown]
# ### 6.13 A step of a GAN ●●● 15 minutes
#
# Two networks, two optimizers, one scaler. First the critic takes a step. It should give 1 for real data and 0 for
# what the generator makes; its loss is the sum of both. Then the generator takes a step: the critic, **as it is
# now**, should give 1 for what the generator makes.
#
# Both losses are made with `loss_fn(outputs, targets)`, under autocast. If only the critic's gradients overflow, the
# generator steps all the same.


# %% exercise="06.gan_step"
def gan_step(generator, critic, real, noise, loss_fn, generator_optimizer, critic_optimizer, scaler) -> None:
    """Train the critic for one step, then the generator.

    real: shape (n, 2). generator(noise) has the same shape. critic: shape (n, 2) to (n, 1).
    The critic's update must not contain gradients of the generator's loss, of this call or
    of an earlier one. The scale is updated once per call.
    """
    ### BEGIN SOLUTION
    critic_optimizer.zero_grad()
    with torch.autocast(noise.device.type, dtype=torch.float16):
        judged, doubted = critic(real), critic(generator(noise).detach())
        loss = loss_fn(judged, torch.ones_like(judged)) + loss_fn(doubted, torch.zeros_like(doubted))
    scaler.scale(loss).backward()
    scaler.step(critic_optimizer)

    generator_optimizer.zero_grad()
    with torch.autocast(noise.device.type, dtype=torch.float16):
        believed = critic(generator(noise))
        loss = loss_fn(believed, torch.ones_like(believed))
    scaler.scale(loss).backward()
    scaler.step(generator_optimizer)
    scaler.update()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.gan_step", gan_step)

# %% [markdown]
# <details><summary>The first call is right, the second one is not</summary>
#
# The generator's backward runs through the critic and leaves gradients there. Are they gone before the critic's next
# backward?
# </details>
#
# <details><summary>The generator is a little off, from the first call on</summary>
#
# Are both passes in one region? Then the second one still sees the critic from before its step: the region keeps the
# weights that it has cast (lab 4, bug 5).
# </details>
#
# <details><summary>Trying to backward through the graph a second time</summary>
#
# The critic's loss must not reach back into the generator: use `generator(noise).detach()` there.
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 20 minutes.*

# %% [markdown]
# ### 6.14 A gradient penalty ●●● 20 minutes
#
# Some losses contain a gradient: that of WGAN-GP wants the gradient of the critic with respect to each input to
# have the norm 1. The loss of a batch is
#
# > `loss_fn(critic(x), y)` + `weight` · mean over rows of (‖∂ Σ critic(x) / ∂ row‖ − 1)²
#
# That inner gradient is computed by a backward of its own. It runs through float16, so what it starts from must be
# scaled. But the penalty is a formula in *true* units: (65536 ‖g‖ − 1)² has nothing to do with (‖g‖ − 1)².
#
# | step | in units of |
# |---|---|
# | inner gradient of `scaler.scale(outputs.sum())`, with `create_graph=True` | the scale |
# | divided by `scaler.get_scale()` | 1 |
# | norm, penalty, loss | 1 |
# | `scaler.scale(loss)`, backward | the scale |


# %% exercise="06.gradient_penalty"
def penalty_step(critic, batch, loss_fn, optimizer, scaler, weight: float) -> float:
    """Train one step, with the penalty.

    The loss is the one above, under autocast to float16. batch: a pair (x, y); x has the shape
    (n, 2). critic: shape (n, 2) to (n, 1), each row by itself.
    Returns the penalty of this batch, without the weight.
    """
    ### BEGIN SOLUTION
    x, y = batch
    x = x.detach().requires_grad_()
    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype=torch.float16):
        outputs = critic(x)
        fit = loss_fn(outputs, y)
    (scaled,) = torch.autograd.grad(scaler.scale(outputs.float().sum()), x, create_graph=True)
    inner = scaled / scaler.get_scale()
    with torch.autocast(x.device.type, dtype=torch.float16):
        penalty = (inner.norm(dim=1) - 1).square().mean()
    scaler.scale(fit + weight * penalty).backward()
    scaler.step(optimizer)
    scaler.update()
    return penalty.item()
    ### END SOLUTION


# %% tags=["nbval-check-output"]
check("06.gradient_penalty", penalty_step)

# %% [markdown]
# <details><summary>The penalty is enormous, or the scale falls and falls</summary>
#
# Its gradient is still scaled. Divide by `scaler.get_scale()` before you take the norm. (`unscale_` is of no use here:
# it works on the `.grad` of an optimizer's parameters.)
# </details>
#
# <details><summary>The penalty is right and has no effect</summary>
#
# Without `create_graph=True` the inner gradient is a constant to the outer backward.
# </details>
#
# <details><summary>element 0 of tensors does not require grad</summary>
#
# x is an input and not a parameter: `x.requires_grad_()`.
# </details>
#
# *Read [the solution](../solutions/06_order_of_a_step.ipynb) after 30 minutes.*

# %% [markdown]
# ## What you built
#
# Discharge: the ward once more, before and after. A repair that is not finished says what it waits for.

# %%
from ampedu.exercises import needs

# %%
WARD = {"clipped_step": patient_1, "patient_2": patient_2, "patient_3": patient_3, "patient_4": patient_4,
        "patient_5": patient_5, "patient_6": patient_6, "patient_7": patient_7, "patient_8": patient_8,
        "patient_9": patient_9, "patient_10": patient_10}  # fmt: skip

# %% tags=["nbval-check-output"]
HEALED = [clipped_step, repaired_2, repaired_3, repaired_4, repaired_5, repaired_6, repaired_7, repaired_8, repaired_9,
          repaired_10]  # fmt: skip
for (name, patient), healed in zip(WARD.items(), HEALED, strict=True):
    symptom(f"06.{name}", patient)
    symptom(f"06.{name}", healed)

# %% [markdown]
# Does your accumulation equal one big batch? Seven rows, cut in three ways that should not matter.


# %%
def trained(cuts):
    """The weights after one step with the seven rows of a random batch, cut into pieces."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(7, 2, generator=generator), torch.randn(7, 1, generator=generator)
    model = torch.nn.Linear(2, 1)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.5)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024)
    batches = list(zip(x.split(cuts), y.split(cuts), strict=True))
    accumulate(model, batches, torch.nn.functional.mse_loss, optimizer, scaler, len(batches))
    return model.weight.detach()


# %%
with needs("06.accumulate"):
    whole = trained([7])
    for cuts in ([1, 6], [2, 2, 3], [1, 1, 1, 1, 1, 1, 1]):
        torch.testing.assert_close(trained(cuts), whole, rtol=0, atol=1e-3)
        print("pieces of", *cuts, "rows: the weights of one big batch, up to 0.001")

# %% [markdown]
# And the penalty: it must not know which scale it was computed with.

# %%
with needs("06.gradient_penalty"):
    penalties = []
    for scale in (1.0, 256.0, 4096.0):
        critic = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Softplus(), torch.nn.Linear(4, 1))
        generator = torch.Generator().manual_seed(seed)
        for parameter in critic.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
        batch = torch.randn(6, 2, generator=generator), torch.zeros(6, 1)
        optimizer, scaler = torch.optim.SGD(critic.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=scale)
        penalties.append(penalty_step(critic, batch, torch.nn.functional.mse_loss, optimizer, scaler, 1.0))
        print(f"scale {scale:6g}: penalty {penalties[-1]:.3f}")
    assert max(penalties) < 1.02 * min(penalties)

# %% [markdown]
# **Where these patients come from** (among others):
# [clipping before unscale_](https://github.com/Lightning-AI/pytorch-lightning/issues/9330) ·
# [unscale_ twice](https://github.com/huggingface/transformers/issues/23935) ·
# [a scaler that changes inside the window](https://github.com/hirofumi0810/neural_sp/issues/136) ·
# [the scheduler's warning](https://github.com/pytorch/pytorch/issues/44511) ·
# [no inf checks](https://github.com/huggingface/accelerate/issues/328) ·
# [one scaler or two](https://github.com/neosr-project/neosr/issues/50) ·
# [float16 parameters](https://github.com/pytorch/pytorch/issues/74739) ·
# [the gradient penalty](https://github.com/pytorch/pytorch/issues/44667).
# The right ways: [Automatic mixed precision
# examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html), with accumulation, penalties and several
# optimizers.
#
# Back to [lesson 6](../notebooks/06_order_of_a_step.ipynb), or on to
# [lesson 7](../notebooks/07_speed_and_memory.ipynb), where memory and time are measured.
