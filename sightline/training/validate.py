"""Validation during training: every image once, whatever the number of processes."""

import torch
from torch import Tensor

from sightline.data.datasets import Dataset
from sightline.data.draws import Draws, hash_key
from sightline.training.tasks import Classify, classification_loss
from sightline.training.train_state import TrainState

LARGEST = 256  # images of one pass


def validate(state: TrainState, val: Dataset, *, workers: int = 0) -> dict[str, float]:
    """`val/loss`, and `val/accuracy` where there are labels to meet, of the averaged weights where there are some."""
    world, recipe = state.world, state.recipe
    batch = max(world.size, min(LARGEST, recipe.batch, world.size * (recipe.micro or LARGEST)))
    place = {"rank": world.rank, "world": world.size, "device": state.device}
    sums = torch.zeros(3, dtype=torch.float64)
    with state.averaged() as model, torch.inference_mode(not world.sharded), state.precision():
        batches = val.batches(model.image, batch=batch, workers=workers, **place)
        for number, (images, labels) in enumerate(batches):
            rows = torch.as_tensor(batches.indices(number)[0])
            sums += _sums(state, images, labels, rows)
    loss, right, count = world.sum(sums.tolist())
    found = {"val/loss": loss / count}
    if isinstance(state.task, Classify):
        found["val/accuracy"] = right / count
    return found


@torch.no_grad()
def _sums(state: TrainState, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Summed loss, right answers, and images."""
    n = len(images)
    if not isinstance(state.task, Classify):
        draws = Draws(hash_key(state.recipe.seed, "val"), rows.numpy())
        loss = state.task(images, labels, draws) if n or state.world.sharded else torch.zeros(())
        return torch.tensor([float(loss) * n if n else 0.0, 0.0, n], dtype=torch.float64)
    logits = state.model(images).float()
    if n == 0:
        return torch.zeros(3, dtype=torch.float64)
    loss = classification_loss(logits, labels, loss=state.task.loss) * n
    if labels.ndim == 2:  # several labels: the first choice is right if it is one of them
        right = labels.gather(1, logits.argmax(1, keepdim=True)).sum()
    else:
        right = (logits.argmax(1) == labels).sum()
    return torch.tensor([loss.item(), right.item(), n], dtype=torch.float64)
