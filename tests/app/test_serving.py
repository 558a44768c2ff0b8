"""A model behind a web address: answers, limits, and uploads that are no images."""

import asyncio
import io

import httpx2
import numpy as np
import pytest
from PIL import Image

import sightline as sl
from tests import peers


@pytest.fixture(scope="module")
def model():
    built = peers.fill(sl.build("vit-nano4", classes=3))
    built.class_names = ("cat", "dog", "bird")
    return built


def jpeg(seed=0, side=40):
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def ask(model, bodies, *, headers=None, method="POST", path="/predict", **how):
    """Send all bodies at once to a running server; its answers in order."""
    server = sl.app.create_server(model, **how)

    async def talk():
        transport = httpx2.ASGITransport(app=server)
        async with (
            server.router.lifespan_context(server),
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client,
        ):
            return await asyncio.gather(*(client.request(method, path, content=body) for body in bodies))

    return asyncio.run(talk())


def test_concurrent_requests_get_what_predict_says(model):
    bodies = [jpeg(i) for i in range(10)]
    expected = sl.predict(model, [Image.open(io.BytesIO(b)) for b in bodies], top=2)
    for said, answer in zip(expected, ask(model, bodies, top=2, limits=sl.app.Limits(batch=4))):
        rows = answer.json()["predictions"]
        assert answer.status_code == 200
        assert [row["name"] for row in rows] == list(said.names)
        np.testing.assert_allclose([row["probability"] for row in rows], said.probabilities, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "no body"),
        (b"not an image", 415, "not an image"),
        (jpeg()[:200], 415, "upload"),
        (b"\0" * 2_000_000, 413, "may have 1 MB"),
    ],
)
def test_bad_uploads_get_a_reason(model, body, status, words):
    (answer,) = ask(model, [body], limits=sl.app.Limits(megabytes=1))
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_too_many_requests_are_refused(model):
    answers = ask(model, [jpeg()] * 8, limits=sl.app.Limits(rate=3))
    assert sorted(a.status_code for a in answers) == [200] * 3 + [429] * 5
    answers = ask(model, [jpeg()] * 8, limits=sl.app.Limits(waiting=2, batch=1))
    assert {a.status_code for a in answers} == {200, 503}


def test_health_methods_and_hosts(model):
    (answer,) = ask(model, [b""], method="GET", path="/health", name="mine")
    assert (answer.status_code, answer.json()["model"], answer.json()["classes"]) == (200, "mine", 3)
    for refused, code in ((ask(model, [b""], method="GET")[0], 405), (ask(model, [jpeg()], path="/else")[0], 404)):
        assert refused.status_code == code
        assert "POST an image to /predict" in refused.json()["error"]
    assert ask(model, [jpeg()], headers={"host": "evil.example"})[0].status_code == 400
    assert ask(model, [jpeg()], headers={"host": "box.lan:8000"}, host="0.0.0.0")[0].status_code == 200
    (form,) = ask(model, [jpeg()], headers={"content-type": "multipart/form-data; boundary=x"})
    assert form.status_code == 415
    assert "--data-binary" in form.json()["error"]


def test_a_broken_model_answers_and_the_server_stays():
    broken = peers.fill(sl.build("vit-nano4", classes=3))
    broken.head.weight.data.fill_(float("nan"))
    answers = ask(broken, [jpeg(), jpeg(1)])
    assert [a.status_code for a in answers] == [500, 500]


def test_mistakes_before_the_start(model):
    with pytest.raises(ValueError, match="at least 1 class"):
        sl.app.create_server(model, top=0)
    with pytest.raises(ValueError, match="rate=0"):
        sl.app.Limits(rate=0)
    with pytest.raises(ValueError, match="no classifier"):
        sl.app.create_server(sl.build("vit-nano4", classes=0))
