"""Attention of other libraries is intercepted in the thread that watches it, and nowhere else."""

import threading

import pytest
import torch
import torch.nn.functional as F

import sightline as sl
from sightline.observe.attention import attention_probs
from sightline.observe.model import evaluation_mode, observe
from tests import peers


def timm_model(**changes):
    sizes = {"img_size": 32, "patch_size": 8, "depth": 2, "num_classes": 5}
    return peers.fill(peers.timm.create_model("vit_tiny_patch16_224", **sizes, **changes), std=0.1).eval()


def torchvision_model():
    return peers.fill(peers.torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5), std=0.1).eval()


def hf_model(kind):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = peers.transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    made = peers.transformers.ViTForImageClassification._from_config(config, attn_implementation=kind)
    return peers.fill(made, std=0.1).eval()


def adopt(model):
    return sl.adopt(model, image=sl.ImageSpec(size=(32, 32)))


def test_another_thread_is_not_touched():
    """While one thread watches, in the middle of a block, another calls the same functions and modules."""
    s = observe(adopt(timm_model()))
    mha = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    q = torch.rand(1, 2, 5, 8)
    x = torch.rand(1, 5, 16)
    with torch.no_grad():
        want = F.scaled_dot_product_attention(q, q, q), mha(x, x, x, need_weights=False)[0]
    functions = (F.scaled_dot_product_attention, F.softmax, torch.softmax, torch.Tensor.softmax)
    seen, found = [], []

    def other():
        with torch.no_grad():
            found.append(torch.overrides._get_current_function_mode())
            found.append(F.scaled_dot_product_attention(q, q, q))
            found.append(mha(x, x, x, need_weights=False)[0])
            found.append((F.scaled_dot_product_attention, F.softmax, torch.softmax, torch.Tensor.softmax))
            found.append(torch.backends.mha.get_fastpath_enabled())

    def keep(block, probs):
        seen.append(block)
        if block == 0:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    with evaluation_mode(s), attention_probs(s, keep):
        s.model(torch.rand(1, 3, 32, 32))
    assert seen == [0, 1]  # five calls of the other thread were not taken for the model's
    mode, fused, native, same, fast = found
    assert mode is None
    assert torch.equal(fused, want[0])
    assert torch.equal(native, want[1])  # by the same native path, to the last bit
    assert same == functions
    assert fast


@pytest.mark.parametrize("make", [timm_model, torchvision_model, lambda: hf_model("sdpa")])
def test_the_taps_of_an_adopted_model_are_its_own_attention(make):
    adopted = adopt(make())
    names = [f"blocks.1.attn.{name}" for name in ("q", "k", "v", "probs", "per_head")]
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad(), sl.record(adopted, *names) as tape:
        adopted(images)
    q, k, v, probs, per_head = (tape[name] for name in names)
    scaled = q @ k.mT * q.shape[-1] ** -0.5
    torch.testing.assert_close(scaled.softmax(-1), probs)
    torch.testing.assert_close(probs @ v, per_head)
    assert q.shape[1] == adopted.config.heads
    ours = sl.load(adopted.inner.state_dict() | {}, size=32, heads=adopted.config.heads)
    with torch.no_grad(), sl.record(ours, *names) as same:
        ours(images)
    for name in names:
        torch.testing.assert_close(tape[name], same[name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_what_a_model_writes_out_is_what_it_fuses(library):
    fused = timm_model() if library == "timm" else hf_model("sdpa")
    eager = timm_model() if library == "timm" else hf_model("eager")
    if library == "timm":
        for block in eager.blocks:
            block.attn.fused_attn = False
    names = [f"blocks.*.attn.{name}" for name in ("v", "probs", "per_head")]
    images = torch.rand(2, 3, 32, 32)
    tapes = []
    for model in (fused, eager):
        adopted = adopt(model)
        with torch.no_grad(), sl.record(adopted, *names) as tape:
            adopted(images)
        tapes.append(tape)
    for name, value in tapes[0].items():
        torch.testing.assert_close(tapes[1][name], value, atol=1e-5, rtol=1e-4)


def test_nothing_is_intercepted_unless_someone_watches(monkeypatch):
    adopted = adopt(timm_model())
    monkeypatch.setattr("sightline.adoption.attention.Interception.__init__", None)
    with torch.no_grad(), sl.record(adopted, "blocks.*.mlp_sum"):
        adopted(torch.rand(1, 3, 32, 32))
        adopted.features(torch.rand(1, 3, 32, 32))
