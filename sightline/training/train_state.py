"""What changes while a model is trained: its parameters, the optimizer's memory, the average."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.draws import Draws, hash_key
from sightline.models.checks import Pair, pair
from sightline.models.construct import Model, resize
from sightline.training import checkpoint, optim, parallel
from sightline.training.parallel import World
from sightline.training.recipe import Recipe
from sightline.training.run import fingerprint
from sightline.training.tasks import prepare, set_rates, task


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What one step says: the mean loss over this process's images, and norms where they were asked for."""

    loss: Tensor
    gradient: Tensor | None = None
    update: Tensor | None = None
    parameter: Tensor | None = None


class TrainState:
    """A model in training, alone or spread over the processes of a world."""

    def __init__(self, model: Model, recipe: Recipe, world: World, *, fresh: bool = True):
        self.model, self.recipe, self.world = model, recipe, world
        self.device = next(model.parameters()).device
        self.wanted = {n: p.requires_grad for n, p in model.named_parameters()}
        prepare(model, recipe, fresh=fresh)
        self.task = task(model, recipe).to(self.device).train()
        if world.sharded:
            parallel.shard(self.task, world)
        self.average = optim.Average(model, float(recipe.ema)) if recipe.ema is not None else None
        self._equip()

    def _equip(self) -> None:
        """An optimizer for the parameters as they now are, and what the loop calls."""
        self.optimizer = optim.optimizer(self.task, self.recipe, fused=self.device.type in ("cpu", "cuda"))
        self.params = optim.named(self.task)
        self.learning = [p for group in self.optimizer.param_groups for p in group["params"]]
        if self.recipe.compile and not self.world.sharded:
            self.model.compile()
        self.called = parallel.spread(self.task, self.world)

    def learn(self, images: Tensor, labels: Tensor, *, step: int, rate: float, watch: bool = False) -> Learned:
        """One optimizer step on this process's share of a batch."""
        self.at(images.shape[2:])  # type: ignore[arg-type]
        if not self.task.training:
            self.task.train()
        loss = self.backward(images, labels, step=step)
        if self.device.type == "cpu" and self.world.size == 1 and not torch.isfinite(loss):
            return Learned(loss=loss)  # an accelerator would stall at the question; many processes must keep in step
        clip = self.recipe.clip
        gradient = optim.norm([p.grad for p in self.learning if p.grad is not None]) if watch or clip else None
        if gradient is not None and not torch.isfinite(gradient):
            return Learned(loss=loss, gradient=gradient)
        if clip is not None and gradient is not None:
            shrink = torch.clamp(float(clip) / (gradient + 1e-6), max=1.0)
            torch._foreach_mul_([p.grad for p in self.learning if p.grad is not None], shrink.to(self.device))
        before = [p.detach().clone() for p in self.learning] if watch else []
        optim.set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.params)
        if not watch:
            return Learned(loss=loss, gradient=gradient)
        after = [p.detach() for p in self.learning]
        torch._foreach_sub_(before, after)
        return Learned(loss=loss, gradient=gradient, update=optim.norm(before), parameter=optim.norm(after))

    def backward(self, images: Tensor, labels: Tensor, *, step: int) -> Tensor:
        """Gradients of the mean loss, a few images at a time where memory asks for it."""
        share = len(images)
        few = self.recipe.micro or share
        total = torch.zeros((), device=self.device)
        rows = np.arange(share) + share * self.world.rank
        for start in range(0, share, few):
            part = slice(start, start + few)
            weight = len(images[part]) / share
            torch.manual_seed(hash_key(self.recipe.seed, step, "noise", int(rows[start])) % 2**63)  # dropout, drop path
            draws = Draws(hash_key(self.recipe.seed, step, "task"), rows[part])
            with parallel.together(self.called, last=start + few >= share):
                with self.precision():
                    loss = self.called(images[part], labels[part], draws)
                (loss * weight).backward()
            total += loss.detach().float() * weight
        return total

    @torch.no_grad()
    def loss(self, images: Tensor, labels: Tensor, *, step: int) -> Tensor:
        """What the weights as they now are make of (the first pass of) a batch."""
        few = slice(self.recipe.micro or len(images))
        loss = self.forward(images[few], labels[few], step=step)
        parallel.forget(self.task)
        return loss

    def forward(self, images: Tensor, labels: Tensor, *, step: int) -> Tensor:
        """The loss of one pass in this process, whatever the others do."""
        with self.precision():
            return self.task(images, labels, Draws(hash_key(self.recipe.seed, step, "task"), np.arange(len(images))))

    def precision(self) -> Any:
        """Autocast where the recipe says bfloat16."""
        if self.recipe.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def at(self, size: Pair) -> None:
        """Carry the model, its average and the optimizer's memory to images of another size, if it is another."""
        if pair(size) == pair(self.model.config.size):
            return
        held = self._tensors()
        with self.averaged():  # what an average holds is resampled by the same rule
            average = resize(self.model, pair(size)).state_dict() if self.average else {}
        memory = self._resized_memory(size)
        become(self.model, resize(self.model, pair(size)))
        set_rates(self.model, self.recipe)
        for name, p in self.model.named_parameters():
            p.requires_grad_(self.wanted[name])
        if self.average is not None:
            self.average.values = {n: average[n].clone() for n in self.average.values}
        self._equip()
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                if name.startswith("optimizer/"):
                    tensor.copy_(memory.get(name, held[name]))

    def _resized_memory(self, size: Pair) -> dict[str, Tensor]:
        """The optimizer's moments of parameters that change shape, resampled as the parameters are."""
        found: dict[str, Tensor] = {}
        kept = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        for key in optim.STATES[self.recipe.optimizer]:
            with torch.no_grad():
                for p in self.model.parameters():
                    if p in self.optimizer.state:
                        p.copy_(self.optimizer.state[p][key])
            moved = resize(self.model, pair(size)).state_dict()
            found |= {f"optimizer/{n}/{key}": moved[n].clone() for n in kept if moved[n].shape != kept[n].shape}
            with torch.no_grad():
                for name, p in self.model.named_parameters():
                    p.copy_(kept[name])
        return found

    @contextmanager
    def averaged(self) -> Iterator[Model]:
        """The model as it should be measured and kept: with the average in place, where there is one."""
        training = self.task.training
        self.task.eval()
        try:
            with self.average.in_place_of(self.params) if self.average else nullcontext():
                yield self.model
        finally:
            parallel.forget(self.task)
            self.task.train(training)

    def _tensors(self) -> dict[str, Tensor]:
        return checkpoint.tensors_of(self.task, self.optimizer, self.average)

    def keep(self, folder: Any, facts: dict[str, Any]) -> None:
        """Write all of it."""
        facts = {**facts, "size": list(pair(self.model.config.size))}
        if not self.world.sharded:  # whoever comes back with this very model in hand goes on
            facts["weights"] = fingerprint(self.model)
        checkpoint.write(folder, self._tensors(), facts, self.world)

    def restore(self, folder: Any) -> dict[str, Any] | None:
        """Read it back, if there is something; says at which step it was kept."""
        facts = checkpoint.facts_of(folder)
        if facts is not None:
            sizes = {pair(self.model.config.size), *(pair(size) for _, size in self.recipe.sizes)}
            if (size := tuple(facts["size"])) not in sizes:
                raise ValueError(f"{folder} is of another run: its images have size {size}, here {sorted(sizes)}.")
            self.at(size)
            checkpoint.read(folder, self._tensors())
        return facts

    def bytes(self) -> int:
        """Size of the state."""
        return checkpoint.size(self._tensors())

    def release(self) -> None:
        """Leave the model as other people's code expects it: every parameter as trainable as it came."""
        for name, p in self.model.named_parameters():
            p.requires_grad_(self.wanted.get(name, True))
        if self.recipe.compile:  # a compiled model records nothing
            self.model._compiled_call_impl = None
        self.model.eval()


def become(model: nn.Module, other: nn.Module) -> None:
    """Make a model, in place, what another one is: whoever holds it sees the change."""
    loose = {k: v for k, v in vars(model).items() if k not in vars(other)}  # class names, loading report
    vars(model).clear()
    vars(model).update({**loose, **vars(other)})
