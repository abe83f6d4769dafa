"""What a recorded figure says of how it was measured."""

import argparse
import json
from pathlib import Path

from inference_node.lab import figures


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--shape", default="small")
    made.add_argument("--bit-positions", type=int, default=2048)
    made.add_argument("--tiles", type=Path)
    made.add_argument("--plain", action="store_true")
    made.add_argument("--out", type=Path)
    made.add_argument("--commit")
    return made


def test_every_option_that_changes_what_is_measured_is_in_the_command() -> None:
    given = ["--bit-positions", "8", "--tiles", "/home/somebody/tiles one.json", "--plain", "--shape=small"]
    said = figures.command("fast_bench", parser(), parser().parse_args([*given, "--out", "/tmp/x", "--commit", "abc"]))
    assert said == "python -m inference_node.lab.fast_bench --bit-positions 8 --tiles 'tiles one.json' --plain"


def test_the_command_stands_in_the_file_beside_what_is_no_number(tmp_path: Path) -> None:
    path = figures.record(tmp_path / "new", "copies", "python -m copies", {"tb_s": 4.3}, note="on one card")
    body = json.loads(path.read_text())
    assert (body["command"], body["figures"], body["note"]) == ("python -m copies", {"tb_s": 4.3}, "on one card")


def test_a_copy_of_a_checkout_says_the_commit_that_it_was_copied_from(monkeypatch) -> None:
    monkeypatch.setenv("SOURCE_COMMIT", "0123abcd")
    assert figures.commit() == "0123abcd"
