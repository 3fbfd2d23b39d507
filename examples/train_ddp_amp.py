"""Train with DDP and AMP on one machine or many, and survive the death of a rank.

On this machine, two processes; a CPU is enough::

    torchrun --standalone --nproc-per-node 2 examples/train_ddp_amp.py --steps 60

On many machines, the same command on each (here 4 machines with 8 GPUs; HOST is one of them, the port any free one)::

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 --rdzv-id run1 \\
        --max-restarts 3 train_ddp_amp.py --precision bf16 --checkpoint /shared/run1.pt

The checkpoint must lie on a disk that all machines see. When a rank dies, torchrun ends the others, starts all of them
again, up to --max-restarts times, and each one reads the checkpoint. See it happen::

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 1 train_ddp_amp.py --steps 60 --die-at 45

The variable gives each restart a store of its own. Without it, the restarted ranks find the addresses of the dead in
the store that the launcher keeps, and fail to connect: so it is in torch 2.13 with gloo on one machine, and people saw
the same with NCCL (github.com/pytorch/pytorch/issues/135712 and 167288).

What a checkpoint holds, and what goes wrong without it:

========== ===========================================================================================
model      the float32 parameters
optimizer  moments and step counts: without them the first updates are those of a cold Adam
scheduler  the learning rate's place on its curve
scaler     scale and growth tracker: without them a run starts at 65536 again and skips until it fits
sampler    epoch and samples seen: without them samples are repeated or left out
rng        one state per rank: without them dropout takes other masks
========== ===========================================================================================

With two ranks on CPUs, the resumed run equals the undisturbed one bit for bit. With more ranks, sums of gradients may
be added in another order after a restart, and on GPUs some kernels add in no fixed order; then the runs agree closely.
"""

import argparse
import contextlib
import hashlib
import itertools
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description="DDP with AMP that survives the death of a rank")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=16, help="samples per rank and micro-batch")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per optimizer step")
    parser.add_argument("--precision", choices=DTYPES, default="fp16")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--max-norm", type=float, default=1.0, help="gradients are clipped to this norm")
    parser.add_argument("--growth-interval", type=int, default=2000, help="steps without inf before the scale doubles")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=Path("train_ddp_amp.pt"))
    parser.add_argument("--save-every", type=int, default=20, help="optimizer steps between checkpoints; 0: never")
    parser.add_argument("--die-at", type=int, default=None, help="a rank kills itself before this step, once")
    parser.add_argument("--die-rank", type=int, default=1)
    return parser.parse_args()


class Sampler(DistributedSampler):
    """A DistributedSampler that can start in the middle of an epoch."""

    start = 0  # samples of this rank that were seen before the restart

    def __iter__(self):
        return itertools.islice(super().__iter__(), self.start, None)


def windows(batches, size):
    """Lists of `size` micro-batches; what is left at the end of an epoch is dropped."""
    batches = iter(batches)
    while len(window := list(itertools.islice(batches, size))) == size:
        yield window


def make_data(seed):
    """A regression that a small network can learn: 2048 samples, 32 inputs, 4 outputs."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(2048, 32, generator=stream)
    return TensorDataset(x, torch.sin(x @ torch.randn(32, 4, generator=stream) / 4))


def make_model():
    """The network. Its dropout draws from the random stream of the rank."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.LayerNorm(128), nn.Dropout(0.1)),
        nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 4)),
    )


class Trainer:
    """Everything that a step needs and a checkpoint holds."""

    def __init__(self, args):
        self.args = args
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        cuda = dist.get_backend() == "nccl"
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
        torch.manual_seed(args.seed)  # the same first weights on all ranks
        model = make_model().to(self.device)
        torch.manual_seed(args.seed + 1 + self.rank)  # but a dropout mask of its own for each
        self.model = DistributedDataParallel(model, device_ids=[self.device.index] if cuda else None)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=args.steps)
        # Only float16 needs a scaler. A disabled one lets everything through, so that the loop has no branches.
        self.scaler = torch.amp.GradScaler(
            self.device.type, growth_interval=args.growth_interval, enabled=args.precision == "fp16"
        )
        self.data = make_data(args.seed)
        self.sampler = Sampler(self.data, shuffle=True, seed=args.seed, drop_last=True)
        # A generator of its own: a loader draws a number whenever it is started, so also after a restart. From the
        # common stream, that draw would shift all dropout masks after it.
        own = torch.Generator()
        self.loader = DataLoader(
            self.data, batch_size=args.batch, sampler=self.sampler, drop_last=True, generator=own
        )
        self.step, self.epoch, self.seen, self.skipped = 0, 0, 0, 0  # seen: samples of this epoch, of all ranks

    def train(self):
        """Train until --steps."""
        while self.step < self.args.steps:
            self.sampler.set_epoch(self.epoch)
            self.sampler.start = self.seen // self.ranks
            before = self.step
            for window in windows(self.loader, self.args.accumulate):
                self.die_if_asked()
                self.one_step(window)
                self.step += 1
                self.seen += self.ranks * sum(len(x) for x, _ in window)
                if self.args.save_every and self.step % self.args.save_every == 0:
                    self.save()
                if self.step == self.args.steps:
                    return
            if self.step == before and not self.sampler.start:
                raise SystemExit("an epoch holds less than one step: take a smaller --batch or --accumulate")
            self.epoch, self.seen = self.epoch + 1, 0

    def one_step(self, window):
        """One optimizer step over a window of micro-batches."""
        self.model.train()
        self.optimizer.zero_grad()
        for index, (x, y) in enumerate(window):
            # Gradients add up on each rank; only the last backward pass sends them.
            last = index == len(window) - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = self.loss(self.model, x, y) / len(window)
                self.scaler.scale(loss).backward()
        # The all-reduce has added the scaled gradients, so an inf of one rank is now on all ranks: all skip, or none.
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_norm)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() < scale:
            self.skipped += 1  # no step was made, so the schedule stays where it is
        else:
            self.scheduler.step()

    def loss(self, model, x, y):
        """The loss: the model under autocast, the mean in float32."""
        x, y = x.to(self.device), y.to(self.device)
        dtype = DTYPES[self.args.precision]
        with torch.autocast(self.device.type, dtype, enabled=dtype is not torch.float32):
            output = model(x)
        return nn.functional.mse_loss(output.float(), y)

    def evaluate(self):
        """The loss on all samples, without dropout; each rank computes the same."""
        self.model.eval()
        with torch.no_grad():
            return self.loss(self.model.module, *self.data.tensors).item()

    def save(self):
        """Write the checkpoint. Every rank takes part, because each has a random state of its own."""
        states = self.random_states()
        if self.rank != 0:
            return
        checkpoint = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "progress": [self.step, self.epoch, self.seen, self.skipped],
            "rng": states,
        }
        # First a file beside it, then a rename: a rank that dies half-way leaves the last checkpoint whole.
        part = self.args.checkpoint.with_suffix(".part")
        with open(part, "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.args.checkpoint)

    def load(self):
        """Go on from the checkpoint, if there is one."""
        if not self.args.checkpoint.exists():
            return
        checkpoint = torch.load(self.args.checkpoint, map_location="cpu", weights_only=True)
        self.model.module.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scheduler.load_state_dict(checkpoint["scheduler"])
        if checkpoint["scaler"]:  # empty if the scaler was disabled
            self.scaler.load_state_dict(checkpoint["scaler"])
        self.step, self.epoch, self.seen, self.skipped = checkpoint["progress"]
        if len(checkpoint["rng"]) == self.ranks:
            self.set_random_state(checkpoint["rng"][self.rank])
        else:
            self.say(f"the checkpoint is of {len(checkpoint['rng'])} ranks: dropout takes new masks")
        self.say(f"resumed at step {self.step}, loss scale {self.scaler.get_scale():g}")

    def random_states(self):
        """One byte tensor per rank: the states of its generators, the CPU's first."""
        mine = torch.get_rng_state()
        if self.device.type == "cuda":
            mine = torch.cat([mine, torch.cuda.get_rng_state(self.device)])
        mine = mine.to(self.device)  # NCCL moves what is on the GPU
        states = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(states, mine)
        return [state.cpu() for state in states]

    def set_random_state(self, state):
        """Go on with the random numbers that would have come next."""
        length = torch.get_rng_state().numel()
        torch.set_rng_state(state[:length].clone())
        if self.device.type == "cuda" and state.numel() > length:
            torch.cuda.set_rng_state(state[length:].clone(), self.device)

    def die_if_asked(self):
        """Play the lost machine: no exception, no last words. Only before the first restart."""
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if first and self.step == self.args.die_at and self.rank == self.args.die_rank:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    def say(self, text):
        """Print on rank 0 only."""
        if self.rank == 0:
            print(text, flush=True)


def main():
    """Train, and return what the run ended with."""
    args = arguments()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.is_available() and torch.cuda.device_count() >= local:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    trainer = Trainer(args)
    trainer.load()
    trainer.train()
    loss, scale = trainer.evaluate(), trainer.scaler.get_scale()
    weights = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in trainer.model.parameters()))
    trainer.say(f"{trainer.step} steps, {trainer.skipped} skipped, loss {loss:.6f}, loss scale {scale:g}")
    dist.destroy_process_group()
    return {
        "loss": loss,
        "scale": scale,
        "skipped": trainer.skipped,
        "weights": weights.hexdigest(),
        "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    }


if __name__ == "__main__":
    result = main()
