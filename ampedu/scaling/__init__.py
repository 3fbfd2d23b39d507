"""Dynamic loss scaling: torch's rule as a small state machine, and the log of a live GradScaler.

state = LossScale(scale=65536.0, growth_interval=5)
state = state.update(found_inf=True)             # 32768.0, tracker 0: the next state, as torch.amp.GradScaler has it
state.simulate("x....x")                         # one Row per step; x marks a step with inf or NaN gradients
with ScalerLog(scaler) as log:                   # around a training loop that stays as it is
    ...
log.skips, log.stepped                           # which steps were skipped; whether the last one happened
"""

from ampedu.scaling.log import ScalerLog
from ampedu.scaling.rule import LossScale, Row, pattern_of

__all__ = ["LossScale", "Row", "ScalerLog", "pattern_of"]
