"""The operator's secrets are in nothing that leaves the service: logs, transcripts, pages, exports, boxes."""

import json
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from orchestrator import wiring
from orchestrator.services import exporting
from orchestrator.settings import PREFIX, Settings
from orchestrator.store.base import Base
from orchestrator.store.migrate import upgrade
from orchestrator.web.app import make_app
from tests.orchestrator.jobs.conftest import tiny_repo
from tests.support.boxes import bubblewrap
from tests.support.postgres import free_port

ROOT = Path(__file__).parents[2]
FORMATS = ("json", "markdown", "sarif", "text")


@pytest.mark.slow
def test_a_whole_review_with_a_model_tells_no_secret(tmp_path: Path) -> None:
    key, other = secrets.token_hex(16), secrets.token_hex(16)
    (tmp_path / "key").write_text(key)
    data, repo, port = tmp_path / "data", tiny_repo(tmp_path / "repo"), free_port()
    settings = Settings(data=data, host_lock=tmp_path / "lock", machine="m", model_key_file=tmp_path / "key")
    bubblewrap(settings)
    given = {
        "DATA": data, "HOST_LOCK": tmp_path / "lock", "MACHINE": "m", "MODEL_KEY_FILE": tmp_path / "key",
        "MODEL_URL": f"http://user:{other}@127.0.0.1:{port}/v1", "MODEL_NAME": "scripted", "LOG_LEVEL": "debug",
        "SANDBOX": "bubblewrap", "MEASURE_PATIENCE_S": "0",
    }  # fmt: skip
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OF_THE_WORKER": key}
    environment |= {f"{PREFIX}{name}": str(value) for name, value in given.items()}
    node = subprocess.Popen([sys.executable, "-m", "tests.support.scripted_node", "127.0.0.1", str(port)], cwd=ROOT)
    try:
        command = [sys.executable, "-m", "tests.support.tiny_command", "review", str(repo), "--focus", "correctness"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    finally:
        node.kill()
        node.wait()
    said = {"what it printed": done.stdout + done.stderr}
    assert done.returncode == 0, said

    upgrade(settings.database)
    shop = wiring.service(settings)
    with shop.sessions.reading() as db:
        for table in Base.metadata.sorted_tables:
            said[f"table {table.name}"] = str(db.execute(table.select()).all())
        review_id = db.execute(text("select id from reviews")).scalar_one()
    review_id = wiring.UUID(review_id)
    for form in FORMATS[:3]:
        said[f"export {form}"] = exporting.export(shop, review_id, form)
    with TestClient(make_app(shop, settings), base_url="http://127.0.0.1:8750") as client:
        for page in (
            f"/reviews/{review_id}",
            f"/api/reviews/{review_id}",
            "/",
            "/node",
            "/health/ready",
            "/api/reviews",
        ):
            said[f"page {page}"] = client.get(page).text
    shop.sessions.close()
    assert "greet.sh greets in the morning" in said["export json"], "the model took part"
    for secret in (key, other):
        assert [where for where, words in said.items() if secret in words] == [], json.dumps(list(said))


def test_a_password_in_an_address_is_hidden_from_what_is_said_about_it(tmp_path: Path) -> None:
    word = secrets.token_hex(8)
    (tmp_path / "password").write_text(word)
    settings = Settings(
        data=tmp_path, database_url="postgresql://lamp@127.0.0.1:1/x", database_password_file=tmp_path / "password"
    )
    assert word in settings.database
    assert word not in repr(settings) and word not in str(settings.model_dump())
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "migrate", "--data", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), f"{PREFIX}DATABASE_URL": settings.database_url,
             f"{PREFIX}DATABASE_PASSWORD_FILE": str(tmp_path / "password")},
    )  # fmt: skip
    assert done.returncode != 0 and word not in done.stdout + done.stderr
