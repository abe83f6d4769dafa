"""The commands that the pages for users name, and where each of them is run.

A page's commands are the lines with `$` in its console blocks, chains included, and the inline `code` with a space in
it, also in tables. What else has a space there is in NOT_COMMANDS. tests/test_documented_commands.py compares the
pages with the tables below, both ways; each test that a table names types those lines, all of them, as they stand.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *(f"docs/{name}.md" for name in ("install", "two-machines", "operating", "troubleshooting")))
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)

HERE = "tests/test_documented_commands.py"
ONE_MACHINE = f"{HERE}: the clone of a person who starts it by make"
ONE_BY_ONE = f"{HERE}: the processes one by one"
ACCOUNTS = f"{HERE}: accounts, backups and the doctor's questions"
UNITS = f"{HERE}: both boxes with systemd"
TUNNEL = f"{HERE}: the tunnel"
COMPOSE = "tests/orchestrator/deploy/test_compose.py: everything on one machine, or the worker's box"
COMPOSED_NODE = "tests/orchestrator/deploy/test_compose.py: the node's box"
DIGESTS = "tests/orchestrator/deploy/test_digests.py"

RUN: dict[str, tuple[str, ...]] = {
    ONE_MACHINE: (
        "git clone REPO lamplighter && cd lamplighter",
        "make up",
        'make up ARGS="--port 9000 --data DIR"',
        "make up NODE=demo",
        "curl -s http://127.0.0.1:8750/api/reviews -H 'Content-Type: application/json' "
        """-d '{"target": "https://github.com/python-humanize/humanize"}'""",
        ".venv/bin/lamplighter review https://github.com/python-humanize/humanize",
        ".venv/bin/lamplighter review ./my-package --format markdown --out review.md --fail-on high",
        ".venv/bin/lamplighter doctor",
        ".venv/bin/lamplighter doctor --adopt",
        "git pull && make up",
        "make clean",
    ),
    ONE_BY_ONE: (
        "lamplighter upgrade",
        "lamplighter migrate",
        "lamplighter web",
        "lamplighter beat",
        "lamplighter worker",
        "lamplighter doctor --only alive",
    ),
    ACCOUNTS: (
        "lamplighter accounts add ada --admin",
        "lamplighter accounts add NAME --admin",
        "lamplighter accounts list",
        'lamplighter accounts token ada --for "nightly export"',
        "lamplighter accounts password NAME",
        "lamplighter backup",
        "lamplighter backup --to /srv/backups --keep 14",
        "lamplighter restore FILE",
        "lamplighter doctor",
        "lamplighter doctor --only index",
        "lamplighter doctor --only node",
    ),
    UNITS: (
        "sudo useradd --system --home-dir /var/lib/lamplighter lamplighter",
        "sudo git clone REPO /opt/lamplighter && cd /opt/lamplighter && sudo python3 -m venv .venv",
        "sudo .venv/bin/pip install -c constraints.txt .",
        "sudo cp orchestrator/systemd/* /etc/systemd/system/",
        "sudo systemctl enable --now lamplighter-engine-proxy lamplighter-web lamplighter-worker lamplighter-beat "
        "lamplighter-backup.timer",
        "sudo useradd --system --home-dir /var/lib/lamplighter-node lamplighter-node",
        "sudo .venv/bin/pip install -c constraints.txt '.[node]'",
        "sudo install -d /etc/lamplighter && "
        "sudo install -m 640 -g lamplighter-node /dev/null /etc/lamplighter/node-key",
        "openssl rand -hex 24 | sudo tee /etc/lamplighter/node-key",
        "sudo cp inference_node/systemd/lamplighter-node.service /etc/systemd/system/",
        "sudo systemctl enable --now lamplighter-node",
        "getent group video render",
    ),
    TUNNEL: (
        "umask 077; wg genkey | tee key | wg pubkey > key.pub",
        "sudo systemctl enable --now wg-quick@wg0",
        "wg show",
    ),
    COMPOSE: (
        "git clone REPO lamplighter && cd lamplighter",
        "cp .env.example .env",
        "docker compose run --rm -T prepare put node-key < node-key.txt",
        "docker compose --profile build build",
        "docker compose up -d",
        "docker compose ps && docker compose logs --tail=50",
        "docker compose logs web",
        "docker compose logs engine-proxy",
        "docker compose exec worker lamplighter doctor",
        "docker compose exec web lamplighter doctor --only database,broker,web,node",
        "docker compose exec web lamplighter accounts add ada",
        "docker compose exec -T web lamplighter backup --to /backups --keep 14",
        "docker compose cp web:/backups/. ./lamplighter-backups",
        "docker compose stop web worker beat",
        "docker compose run --rm web restore /backups/FILE --replace",
        "git pull && docker compose --profile build build && docker compose up -d",
        "make sandbox-image",
        "docker compose down -v",
        "docker image prune --filter label=lamplighter.image",
    ),
    COMPOSED_NODE: (
        "git clone REPO lamplighter && cd lamplighter/inference_node",
        "cp ../.env.example .env",
        "docker compose up -d --build",
        "docker compose logs -f node-rocm",
        "docker compose run --rm -T prepare show node-key",
    ),
    DIGESTS: (
        "make digests",
        'make digests IMAGES="PYTHON_IMAGE ROCM_IMAGE" ENV=inference_node/.env',
    ),
}

# Cannot be run here: why, and what is looked at instead.
NOT_RUN = {
    "make test": "it runs this test; make itself says what it would do",
    "make check": "a minute of its own in CI's hands; make itself says what it would do",
    "sudo update-grub": "changes how the machine starts, and there is no boot loader; the two numbers beside it are "
    "held against each other",
    "ls -l /dev/kfd /dev/dri": "there is no AMD card; compose's profile hands on exactly these two",
}

NOT_COMMANDS = {
    "pip install .": "what a probe does, not the reader",
    "Authorization: Bearer TOKEN": "a header",
    "X-Forwarded-Proto: https": "a header",
    "Endpoint = NODE_BOX_ADDRESS:51820": "a line of wg0.conf",
    "PersistentKeepalive = 25": "a line of wg0.conf",
    "Cannot listen on 127.0.0.1 port 8750": "what one sees",
    "maxmemory-policy noeviction": "a line of redis.conf",
}


def commands(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for language, block in BLOCK.findall(text):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        typed = [line.strip()[2:] for line in lines if line.strip().startswith("$ ")]
        assert bool(typed) is (language == "console"), f"{page}: commands are in console blocks, after `$ `: {block}"
        found += [re.sub(r"\s{2,}#.*", "", line).strip() for line in typed]
    inline = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", BLOCK.sub("", text))]
    return found + [span for span in inline if " " in span]


def block_after(page: str, words: str) -> str:
    """The block that follows these words."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = BLOCK.search(text, text.index(words))
    assert found is not None
    return found[2]
