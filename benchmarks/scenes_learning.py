"""How accuracy on a scenes task grows with the number of training scenes, for a small CNN and a linear classifier.

    python -m benchmarks.scenes_learning objects 1000 10000 100000 300000

One core, about five to ten minutes a line. The steps are the same for every size, so more scenes means fewer repeats.
"""

import sys

import numpy as np
import torch
from torch import nn

import sightline as sl

STEPS, BATCH, TEST = 2_500, 128, 4_000


def scenes(task, split, num):
    d = sl.dataset(f"scenes/{task}", split=split, num=num, size=32)
    images = torch.from_numpy(d.images(np.arange(num)).transpose(0, 3, 1, 2).copy())
    return images, torch.from_numpy(d.labels), len(d.classes)


def block(before, after, stride=1):
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def small_cnn(classes):
    widths = [(3, 24, 1), (24, 32, 2), (32, 48, 1), (48, 64, 2), (64, 96, 1), (96, 128, 2)]
    body = [block(*w) for w in widths]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)), 4e-3


def linear(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, classes)), 3e-4


def accuracy(build, train, test):
    torch.manual_seed(0)
    model, lr = build(train[2])
    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=STEPS)
    chance = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        rows = torch.randint(0, len(train[0]), (BATCH,), generator=chance)
        loss = nn.functional.cross_entropy(model(train[0][rows] / 127.5 - 1), train[1][rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        return (model(test[0] / 127.5 - 1).argmax(1) == test[1]).float().mean().item()


def main(task="objects", *sizes):
    torch.set_num_threads(1)
    test = scenes(task, "test", TEST)
    for size in map(int, sizes or ("1000", "10000")):
        train = scenes(task, "train", size)
        for build in (linear, small_cnn):
            print(f"scenes/{task}, {size:,} scenes, {build.__name__}: {accuracy(build, train, test):.1%}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
