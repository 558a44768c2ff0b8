"""Validation during training: every picture once, whatever the number of processes."""

import torch
from torch import Tensor

from sightline.data.dataset import Dataset
from sightline.data.draws import Draws, word
from sightline.training.tasks import Classify, classification_loss
from sightline.training.trainee import Trainee

LARGEST = 256  # pictures of one pass


def validate(trainee: Trainee, val: Dataset, *, workers: int = 0) -> dict[str, float]:
    """`val/loss`, and `val/accuracy` where there are labels to meet, of the averaged weights where there are some."""
    world, recipe = trainee.world, trainee.recipe
    batch = max(world.size, min(LARGEST, recipe.batch, world.size * (recipe.micro or LARGEST)))
    place = {"rank": world.rank, "world": world.size, "device": trainee.device}
    sums = torch.zeros(3, dtype=torch.float64)
    with trainee.averaged() as model, torch.inference_mode(not world.sharded), trainee.precision():
        batches = val.batches(model.image, batch=batch, workers=workers, **place)
        for number, (images, labels) in enumerate(batches):
            rows = torch.as_tensor(batches.rows(number)[0])
            sums += _sums(trainee, images, labels, rows)
    loss, right, count = world.sum(sums.tolist())
    found = {"val/loss": loss / count}
    if isinstance(trainee.task, Classify):
        found["val/accuracy"] = right / count
    return found


@torch.no_grad()
def _sums(trainee: Trainee, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Summed loss, right answers, and pictures."""
    n = len(images)
    if not isinstance(trainee.task, Classify):
        draws = Draws(word(trainee.recipe.seed, "val"), rows.numpy())
        loss = trainee.task(images, labels, draws) if n or trainee.world.sharded else torch.zeros(())
        return torch.tensor([float(loss) * n if n else 0.0, 0.0, n], dtype=torch.float64)
    logits = trainee.model(images).float()
    if n == 0:
        return torch.zeros(3, dtype=torch.float64)
    loss = classification_loss(logits, labels, loss=trainee.task.loss) * n
    if labels.ndim == 2:  # several labels: the first choice is right if it is one of them
        right = labels.gather(1, logits.argmax(1, keepdim=True)).sum()
    else:
        right = (logits.argmax(1) == labels).sum()
    return torch.tensor([loss.item(), right.item(), n], dtype=torch.float64)
