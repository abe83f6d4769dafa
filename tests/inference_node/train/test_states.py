"""States from a node: the ones that were asked for or none, whatever happens between the boxes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch
from fastapi import FastAPI
from safetensors.torch import load, load_file, save_file
from typer.testing import CliRunner

from inference_node.engine.engine import Engine
from inference_node.lab.serving import Background, served
from inference_node.models import states as form
from inference_node.models.errors import NodeError
from inference_node.models.files import find
from inference_node.node import app_options, open_engine
from inference_node.server.app import create_app
from inference_node.server.states import Places
from inference_node.settings import Settings
from inference_node.train import arm as arms
from inference_node.train import run
from inference_node.train import sample as samples
from inference_node.train.command import app
from inference_node.train.features import LocalTarget
from inference_node.train.session import Session
from inference_node.train.states import RemoteTarget
from inference_node.train.target import OpenTarget, open_target
from tests.inference_node.train.conftest import random_samples

FAMILY = "qwen3_5_moe"
SAMPLES = random_samples((30, 70, 130, 25))
TAPS = (0, 2)
SHORT = {"block": 4, "rows": 160, "anchors": 16, "steps": 5, "warmup": 0.2, "taps": TAPS}


def settings_of(folder: Path) -> Settings:
    return Settings(model=str(folder), weights="fp32", device="cpu", draft="none", prefix_bytes=0)


@pytest.fixture(scope="module")
def node(fabricated) -> Iterator[tuple[str, Engine]]:
    with served(settings_of(fabricated(FAMILY).target), states=True) as found:
        yield found


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    background = Background(app)
    try:
        yield background.url
    finally:
        background.stop()


@pytest.fixture(scope="module")
def ends(fabricated) -> OpenTarget:
    return open_target(str(fabricated(FAMILY).target), weights="fp32", ends_only=True)


def source_of(url: str, ends: OpenTarget, **options: object) -> RemoteTarget:
    chosen = {"last": True, "model": form.fingerprint(ends.files), **options}
    return RemoteTarget(url, ends.module, TAPS, layers=ends.shape.layers, device=torch.device("cpu"), **chosen)


def test_they_are_those_of_the_target_in_one_process(node, ends, opened) -> None:
    here = LocalTarget(opened(FAMILY).module, TAPS, last=True).states(SAMPLES)
    far = source_of(node[0], ends)
    for mine, sent in zip(here, far.states(SAMPLES), strict=True):
        assert sent.feature.shape == mine.feature.shape
        for a, b in ((mine.feature, sent.feature), (mine.last, sent.last)):
            assert float((a - b).abs().max() / a.std()) < 0.05  # bf16 keeps 8 bits, and outliers are ten deviations
            assert float((a - b).abs().mean() / a.std()) < 0.004
    assert torch.equal(far.head, opened(FAMILY).module.lm_head.weight)
    assert torch.equal(far.embedding, opened(FAMILY).module.model.embed_tokens.weight)
    far.close()


def test_half_the_bytes_cost_a_sixteenth_of_a_row_at_most(node, ends) -> None:
    whole, half = source_of(node[0], ends), source_of(node[0], ends, kind="fp8")
    a, b = whole.states(SAMPLES)[2].feature, half.states(SAMPLES)[2].feature
    assert half.bytes < 0.6 * whole.bytes
    top = a.unflatten(-1, (len(TAPS), -1)).abs().amax(-1, keepdim=True)
    assert float(((a - b).unflatten(-1, (len(TAPS), -1)).abs() / top).max()) < 1 / 16
    whole.close(), half.close()


def test_states_of_a_wrong_model_are_refused_by_the_node_and_by_the_trainer(node, ends, fabricated) -> None:
    other = form.fingerprint(open_target(str(fabricated("qwen3_5").target), ends_only=True).files)
    with pytest.raises(NodeError, match="fingerprint"):
        source_of(node[0], ends, model=other).states(SAMPLES[:1])
    mine = form.fingerprint(ends.files)
    body = form.encode(torch.randn(3, 2, 8), form="bf16", model=other, tokens=[1, 2, 3], taps=TAPS)
    with pytest.raises(form.OtherStates, match=other):
        form.decode(body, hashlib.sha256(body).hexdigest(), model=mine, tokens=[1, 2, 3], taps=TAPS)


def test_a_model_that_differs_in_one_tensor_has_another_fingerprint(fabricated, tmp_path: Path) -> None:
    source = fabricated("llama").target
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert form.fingerprint(find(str(tmp_path))) == form.fingerprint(find(str(source)))
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.1.self_attn.q_proj.weight"] *= 1.01
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert form.fingerprint(find(str(tmp_path))) != form.fingerprint(find(str(source)))


@pytest.mark.parametrize("kind", form.FORMS)
def test_shuffled_and_broken_answers_are_told_apart_from_right_ones(kind: str) -> None:
    rows = torch.randn(3, 2, 8)
    body = form.encode(rows, form=kind, model="m", tokens=[1, 2, 3], taps=TAPS)
    checksum = hashlib.sha256(body).hexdigest()
    asked = {"model": "m", "tokens": [1, 2, 3], "taps": TAPS}
    assert form.decode(body, checksum, **asked).shape == rows.shape
    for changed in ({"tokens": [1, 3, 2]}, {"tokens": [12, 3]}, {"taps": (2, 0)}):
        with pytest.raises(form.OtherStates, match="other tokens or other layers"):
            form.decode(body, checksum, **{**asked, **changed})
    for broken in (body[:-1], body[:-1] + bytes([body[-1] ^ 1])):
        with pytest.raises(form.BrokenBody):
            form.decode(broken, checksum, **asked)


def test_a_node_with_all_places_taken_says_when_to_come_back_and_the_trainer_waits(fabricated, ends) -> None:
    engine = open_engine(settings_of(fabricated(FAMILY).target))
    engine.wait_until_loaded()
    options = app_options(settings_of(fabricated(FAMILY).target), states=True)
    app = create_app(engine, options)
    background = Background(app)
    for _ in range(options.states_at_once):
        app.state.places.take()
    busy = httpx.post(f"{background.url}/states", json={"tokens": [1, 2], "taps": [0]})
    assert busy.status_code == 429 and busy.headers["Retry-After"] == "1"
    far = source_of(background.url, ends, connections=8)
    threading.Timer(0.2, app.state.places.give_back).start()
    assert len(far.states(SAMPLES)) == len(SAMPLES)  # eight at a time through one place
    far.close()
    background.stop()
    engine.close()


def test_prompts_are_answered_in_between_and_their_answers_do_not_change(node) -> None:
    url, _ = node
    asked = {"prompt": "The lamp", "max_tokens": 8, "temperature": 0}
    before = httpx.post(f"{url}/v1/completions", json=asked, timeout=60).json()["choices"][0]["text"]
    answers: list[httpx.Response] = []
    body = {"tokens": list(range(10, 400)), "taps": [1]}
    threads = [
        threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/states", json=body, timeout=60)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    assert httpx.post(f"{url}/v1/completions", json=asked, timeout=60).json()["choices"][0]["text"] == before
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * 3
    first, *others = (load(answer.content)["states"] for answer in answers)
    assert first.shape == (390, 1, 64) and all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"taps": [4]}, "Layer 4"),
        ({"taps": []}, "taps"),
        ({"tokens": [10**6]}, "1000000"),
        ({"tokens": []}, "tokens"),
        ({"form": "int4"}, "form"),
        ({"tokens": [1] * 5000}, "4096"),
        ({"layers": [1]}, "layers"),
        ({"taps": [1, 0, 1]}, "Layer 1 was named more than once"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(node, change, told: str) -> None:
    reply = httpx.post(f"{node[0]}/states", json={"tokens": [1, 2, 3], "taps": [0], **change})
    assert reply.status_code == 400 and told in reply.json()["error"]["message"]


def test_states_that_are_too_large_for_an_answer_are_refused_with_both_numbers(node, fabricated) -> None:
    _, engine = node
    options = app_options(settings_of(fabricated(FAMILY).target).model_copy(update={"states_bytes": 1024}), states=True)
    with running(create_app(engine, options)) as url:
        fits = httpx.post(f"{url}/states", json={"tokens": [1, 2, 3, 4], "taps": [0, 1]})
        reply = httpx.post(f"{url}/states", json={"tokens": [1, 2, 3, 4, 5], "taps": [0, 1]})
    assert fits.status_code == 200, "4 tokens, 2 layers of 64 numbers, 2 bytes each"
    told = reply.json()["error"]["message"]
    assert reply.status_code == 413 and "1280 bytes" in told and "1024" in told and "4 tokens at most" in told


def test_a_body_is_hashed_beside_the_loop_that_answers_everybody(node, fabricated, monkeypatch) -> None:
    threads: dict[str, int] = {}
    take, sha256 = Places.take, form.sha256

    def taken(places: Places) -> None:
        threads["loop"] = threading.get_ident()
        take(places)

    def hashed(body: bytes) -> str:
        threads["hash"] = threading.get_ident()
        return sha256(body)

    monkeypatch.setattr(Places, "take", taken)
    monkeypatch.setattr(form, "sha256", hashed)
    reply = httpx.post(f"{node[0]}/states", json={"tokens": [1, 2], "taps": [0]})
    assert reply.headers[form.CHECKSUM] == sha256(reply.content)
    assert threads["hash"] != threads["loop"]


@pytest.mark.parametrize("taps", [(0, 3), (2, 2)], ids=["the last layer is a tap", "a layer is tapped twice"])
def test_a_layer_that_is_wanted_twice_is_sent_once(node, ends, opened, taps: tuple[int, ...]) -> None:
    here = LocalTarget(opened(FAMILY).module, taps, last=True).states(SAMPLES[:1])[0]
    far = RemoteTarget(
        node[0], ends.module, taps, layers=ends.shape.layers, model=form.fingerprint(ends.files), last=True,
        device=torch.device("cpu"),
    )  # fmt: skip
    sent = far.states(SAMPLES[:1])[0]
    far.close()
    assert len(set(far.asked)) == len(far.asked) == 2 and sent.last is not None
    for a, b in ((here.feature, sent.feature), (here.last, sent.last)):
        assert a.shape == b.shape and float((a - b).abs().max() / a.std()) < 0.05


def test_a_node_that_only_answers_prompts_is_named(fabricated, ends) -> None:
    with (
        served(settings_of(fabricated(FAMILY).target)) as (url, _),
        pytest.raises(NodeError, match="train states --model"),
    ):
        source_of(url, ends).states(SAMPLES[:1])


def trained(url: str, folder: Path, out: Path, *, each=lambda line: None, **options: object) -> Session:
    session = Session.remote(arms.made({**SHORT, "loss": "kl"}), SAMPLES, str(folder), url, device="cpu", **options)
    session.train(out, told=each, log_every=1)
    session.close()
    return session


def test_a_run_whose_node_goes_away_ends_with_the_weights_of_one_whose_node_stayed(
    node, fabricated, tmp_path: Path
) -> None:
    folder = fabricated(FAMILY).target
    whole = trained(node[0], folder, tmp_path / "whole")
    engine = open_engine(settings_of(folder))
    engine.wait_until_loaded()
    app = create_app(engine, app_options(settings_of(folder), states=True))
    background = Background(app)
    port, heard = int(background.url.rsplit(":", 1)[1]), []
    again: list[Background] = []

    def told(line: run.Line) -> None:
        if line.step == 1:
            background.stop()
            threading.Timer(0.3, lambda: again.append(Background(app, port))).start()

    cut = trained(background.url, folder, tmp_path / "cut", each=told, told=heard.append)
    again[0].stop()
    engine.close()
    for name, weight in whole.learner.module.named_parameters():
        assert torch.equal(weight, dict(cut.learner.module.named_parameters())[name]), name
    assert [line.step for line in run.read_log(tmp_path / "cut")] == [1, 2, 3, 4, 5]
    assert any("does not answer" in text for text in heard) and heard[-1] == "the node answers again"


def test_a_run_that_fails_leaves_nothing_fetching(node, fabricated, tmp_path: Path) -> None:
    samples.write(tmp_path / "texts.jsonl", SAMPLES)
    (tmp_path / "arm.toml").write_text("block = 4\nrows = 160\nanchors = 16\nsteps = 2\ntaps = [0, 2]\n")
    (tmp_path / "out").write_text("a file where the run's folder would be")
    before = set(threading.enumerate())
    options = ["--data", str(tmp_path / "texts.jsonl"), "--model", str(fabricated(FAMILY).target), "--states", node[0]]
    options += ["--out", str(tmp_path / "out"), "--held-out", "0", "--device", "cpu"]
    result = CliRunner().invoke(app, ["run", str(tmp_path / "arm.toml"), *options])
    assert isinstance(result.exception, OSError), result.output
    left = {thread for thread in threading.enumerate() if thread.name.startswith("states")} - before
    assert not left


def test_an_arm_that_does_not_fit_is_refused_before_anything_is_loaded(node, fabricated) -> None:
    with pytest.raises(NodeError, match=r"--memory-gb 0\.0001.*lower anchors"):
        Session.remote(
            arms.made(SHORT), SAMPLES, str(fabricated(FAMILY).target), node[0], device="cpu", memory_gb=0.0001
        )
