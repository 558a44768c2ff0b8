"""What changes during training: the model's parameters, the optimizer's moments, the average."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.draws import Draws, hash_key
from sightline.files import set_aside
from sightline.models.checks import Pair, pair
from sightline.models.construct import Model, resize
from sightline.training import parallel
from sightline.training.objectives.setup import build_objective, configure_model, initialize_head
from sightline.training.optimization.average import PolyakAverage
from sightline.training.optimization.optimizer import (
    ADAMW_MOMENTS,
    MOMENTUM,
    SLOW,
    build_optimizer,
    look_back,
    parameters_by_name,
    set_learning_rate,
    total_norm,
)
from sightline.training.parallel import ProcessGroup
from sightline.training.recipe import Recipe
from sightline.training.run import checkpoint
from sightline.training.run.identity import fingerprint

log = logging.getLogger("sightline.training")


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One optimizer step: the mean loss over this process's images, and norms if they were asked for."""

    loss: Tensor
    gradient_norm: Tensor | None = None
    update_norm: Tensor | None = None
    parameter_norm: Tensor | None = None


class TrainState:
    """A model in training, in one process or distributed over several."""

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        processes: ProcessGroup,
        *,
        fresh: bool = True,
        classes: tuple[str, ...] = (),  # of the objects in masks
    ):
        self.model, self.recipe, self.processes = model, recipe, processes
        self.device = next(model.parameters()).device
        self.requires_grad = {n: p.requires_grad for n, p in model.named_parameters()}
        if fresh:
            initialize_head(model, recipe)
        configure_model(model, recipe)
        self.objective = build_objective(model, recipe, classes=classes).to(self.device).train()
        if processes.sharded:
            parallel.shard_parameters(self.objective, processes)
        averaged = self.objective if recipe.dense else model  # a dense head is kept, so it is averaged, too
        self.average = PolyakAverage(averaged, float(recipe.ema)) if recipe.ema is not None else None
        self._build_optimizer()

    def _build_optimizer(self) -> None:
        """An optimizer for the parameters as they are now, and the module that the loop calls."""
        self.optimizer = build_optimizer(self.objective, self.recipe, fused=self.device.type in ("cpu", "cuda"))
        self.params = parameters_by_name(self.objective)
        self.trainable = [p for group in self.optimizer.param_groups for p in group["params"]]
        if self.recipe.compile and not self.processes.sharded:
            self.model.compile(dynamic=False)  # code for each size: a run that resumes compiles the same
        self.wrapped = parallel.wrap_ddp(self.objective, self.processes)

    def train_step(
        self, images: Tensor, labels: Tensor, *, step: int, rate: float, with_norms: bool = False
    ) -> StepResult:
        """One optimizer step on this process's share of a batch."""
        self.set_image_size(images.shape[2:])  # type: ignore[arg-type]
        if not self.objective.training:
            self.objective.train()
        loss = self.backward(images, labels, step=step)
        if self.device.type == "cpu" and self.processes.size == 1 and not torch.isfinite(loss):
            return StepResult(loss=loss)  # only here: checking stalls an accelerator, and processes must stay in step
        clip = self.recipe.clip
        grads = [p.grad for p in self.trainable if p.grad is not None]
        gradient = total_norm(grads) if with_norms or clip else None
        if gradient is not None and not torch.isfinite(gradient):
            return StepResult(loss=loss, gradient_norm=gradient)
        if clip is not None and gradient is not None:
            scale = torch.clamp(float(clip) / (gradient + 1e-6), max=1.0)
            torch._foreach_mul_(grads, scale.to(self.device))
        before = [p.detach().clone() for p in self.trainable] if with_norms else []
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        if self.recipe.lookahead is not None and (step + 1) % self.recipe.lookahead == 0:
            look_back(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.params)
        if not with_norms:
            return StepResult(loss=loss, gradient_norm=gradient)
        after = [p.detach() for p in self.trainable]
        torch._foreach_sub_(before, after)
        return StepResult(
            loss=loss, gradient_norm=gradient, update_norm=total_norm(before), parameter_norm=total_norm(after)
        )

    def backward(self, images: Tensor, labels: Tensor, *, step: int) -> Tensor:
        """Gradients of the mean loss, in passes of `micro` images."""
        if self.recipe.layout == "channels-last":
            images = images.contiguous(memory_format=torch.channels_last)
        share = len(images)
        micro = self.recipe.micro or share
        total = torch.zeros((), device=self.device)
        rows = np.arange(share) + share * self.processes.rank
        for start in range(0, share, micro):
            part = slice(start, start + micro)
            weight = len(images[part]) / share
            torch.manual_seed(hash_key(self.recipe.seed, step, "noise", int(rows[start])) % 2**63)  # dropout, drop path
            draws = Draws(hash_key(self.recipe.seed, step, "task"), rows[part])
            with parallel.sync_gradients(self.wrapped, start + micro >= share):
                with self.precision():
                    loss = self.wrapped(images[part], labels[part], draws)
                (loss * weight).backward()
            total += loss.detach().float() * weight
        return total

    @torch.no_grad()
    def loss(self, images: Tensor, labels: Tensor, *, step: int) -> Tensor:
        """The loss of the current weights on the first pass of a batch."""
        part = slice(self.recipe.micro or len(images))
        loss = self.forward(images[part], labels[part], step=step)
        parallel.reshard(self.objective)
        return loss

    def forward(self, images: Tensor, labels: Tensor, *, step: int) -> Tensor:
        """The loss of one pass in this process alone."""
        with self.precision():
            return self.objective(
                images, labels, Draws(hash_key(self.recipe.seed, step, "task"), np.arange(len(images)))
            )

    def precision(self) -> Any:
        """Autocast if the recipe asks for bfloat16."""
        if self.recipe.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def set_image_size(self, size: Pair) -> None:
        """Resize the model, its average and the optimizer's moments for images of another size."""
        if pair(size) == pair(self.model.config.size):
            return
        held = self._tensors()
        with self.evaluation_model():  # the average is resampled by the same rule
            average = resize(self.model, pair(size)).state_dict() if self.average else {}
        moments = self._resized_moments(size)
        overwrite_model(self.model, resize(self.model, pair(size)))
        configure_model(self.model, self.recipe)
        for name, p in self.model.named_parameters():
            p.requires_grad_(self.requires_grad[name])
        if self.average is not None:
            self.average.values = {n: average[n].clone() for n in self.average.values}
        self._build_optimizer()
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                if name.startswith("optimizer/"):
                    tensor.copy_(moments.get(name, held[name]))

    def _resized_moments(self, size: Pair) -> dict[str, Tensor]:
        """The optimizer's moments of parameters that change shape, resampled as the parameters are."""
        moments: dict[str, Tensor] = {}
        held = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        for key in (*ADAMW_MOMENTS, *MOMENTUM, SLOW):
            having = {n for n, p in self.model.named_parameters() if key in self.optimizer.state.get(p, {})}
            with torch.no_grad():
                for name, p in self.model.named_parameters():
                    if name in having:
                        p.copy_(self.optimizer.state[p][key])
            resized = resize(self.model, pair(size)).state_dict()
            moments |= {f"optimizer/{n}/{key}": resized[n].clone() for n in having if resized[n].shape != held[n].shape}
            with torch.no_grad():
                for name, p in self.model.named_parameters():
                    p.copy_(held[name])
        return moments

    @contextmanager
    def evaluation_model(self) -> Iterator[Model]:
        """The model to evaluate and save: in evaluation mode, with the averaged weights if there are any."""
        training = self.objective.training
        self.objective.eval()
        # compiling again for every batch size of an evaluation would cost more than it gains
        plain: Any = torch.compiler.set_stance("force_eager") if self.recipe.compile else nullcontext()
        try:
            with plain, self.average.swap_into(self.params) if self.average else nullcontext():
                yield self.model
        finally:
            parallel.reshard(self.objective)
            self.objective.train(training)

    def _tensors(self) -> dict[str, Tensor]:
        return checkpoint.state_tensors(self.objective, self.optimizer, self.average)

    def save(self, folder: Path, facts: dict[str, Any]) -> None:
        """Write the state and the facts that go with it."""
        facts = {**facts, "size": list(pair(self.model.config.size))}
        if not self.processes.sharded:  # a notebook may resume with this very model
            facts["weights"] = fingerprint(self.model)
        checkpoint.write_state(folder, self._tensors(), facts, self.processes)

    def restore(self, folder: Path) -> dict[str, Any] | None:
        """Read the last sound state back and return its facts; None if there is none. A damaged one is set aside."""
        checkpoint.states(folder)  # refuses links
        if self.processes.first:
            checkpoint.promote(folder)
        self.processes.barrier()
        found = checkpoint.states(folder)
        sizes = {pair(self.model.config.size), *(pair(size) for _, size in self.recipe.sizes)}
        for path in found:
            damage: checkpoint.DamagedState | None = None
            try:
                facts = self._restore(path, sizes)
            except checkpoint.DamagedState as error:
                damage = error
            if not self.processes.any(damage is not None):
                return facts
            if path == found[-1]:
                raise damage or ValueError(f"Another process cannot read {path}.")
            if self.processes.first:
                reason = damage.reason if damage else "another process cannot read it"
                log.warning("%s is damaged (%s): set aside as %s.", path, reason, set_aside(path).name)
            self.processes.barrier()
        return None

    def _restore(self, path: Path, sizes: set[tuple[int, int]]) -> dict[str, Any]:
        facts = checkpoint.read_state_facts(path)
        if (size := tuple(facts["size"])) not in sizes:
            raise ValueError(f"{path} belongs to another run: its images have size {size}, here it is {sorted(sizes)}.")
        self.set_image_size(size)
        checkpoint.read_state(path, self._tensors())
        return facts

    def size_in_bytes(self) -> int:
        return checkpoint.total_bytes(self._tensors())

    def release(self) -> None:
        """Return the model to its caller: in evaluation mode, every parameter as trainable as before."""
        for name, p in self.model.named_parameters():
            p.requires_grad_(self.requires_grad.get(name, True))
        if self.recipe.compile:  # a compiled model records nothing
            self.model._compiled_call_impl = None
        self.model.eval()


def overwrite_model(model: nn.Module, other: nn.Module) -> None:
    """Turn a model, in place, into another one: everyone who holds it sees the change."""
    extra = {k: v for k, v in vars(model).items() if k not in vars(other)}  # class names, loading report
    vars(model).clear()
    vars(model).update({**extra, **vars(other)})
