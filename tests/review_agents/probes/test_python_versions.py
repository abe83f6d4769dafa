import subprocess
from pathlib import Path

import pytest

from review_agents.probes.python_versions import oldest_minor, too_new


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("match x:\n    case 1:\n        pass\n", "a match statement"),
        ("import tomllib\n", "the module `tomllib`"),
        ("from enum import StrEnum\n", "`enum.StrEnum`"),
        ("import datetime\nnow = datetime.datetime.now(datetime.UTC)\n", "`datetime.UTC`"),
        ("list(zip(a, b, strict=True))\n", "`zip(strict=...)`"),
        ("from dataclasses import dataclass\n@dataclass(slots=True)\nclass A:\n    x: int\n", "`dataclass(slots=...)`"),
        ("def f(x: int | None) -> None: ...\n", "`X | Y` as a type"),
        ("raise ExceptionGroup('a', [])\n", "`ExceptionGroup`"),
    ],
)
def test_what_came_after_the_oldest_admitted_python_is_found_and_the_check_finds_it_again(
    code: str, what: str, tmp_path: Path
):
    (use,) = too_new(code, ">=3.9")
    assert use.what == what
    (tmp_path / "m.py").write_text(code)
    ran = subprocess.run(["bash", "-c", use.check("m.py")], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1 and "needs Python" in ran.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nif sys.version_info >= (3, 11):\n    import tomllib\nelse:\n    import tomli as tomllib\n",
        "try:\n    import tomllib\nexcept ImportError:\n    tomllib = None\n",
        "from __future__ import annotations\ndef f(x: int | None) -> None: ...\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from typing import Self\n",
        "def f():\n    x: int | None = 1\n    return x\n",
        "from attr import dataclass\n@dataclass(slots=True)\nclass A:\n    x = 1\n",
        "flags = A | B\n",
        "import itertools\ndef pairwise(x):\n    return list(itertools.pairwise(x))\n",
        "try:\n    import importlib_resources as resources\nexcept ImportError:\n    from importlib import resources\n"
        "def f():\n    return resources.files('a')\n",
        "import sys\nimport itertools\ndef f(x):\n    if sys.version_info < (3, 10):\n        return None\n"
        "    return itertools.pairwise(x)\n",
        "class ExceptionGroup(Exception): ...\nraise ExceptionGroup()\n",
        "def f(zip): return zip(1, strict=True)\n",
    ],
)
def test_guarded_and_deferred_uses_are_left_alone(code: str):
    assert too_new(code, ">=3.9") == ()


def test_the_oldest_version_is_read_from_the_specifier():
    assert oldest_minor(">=3.9") == 9
    assert oldest_minor(">=3.8,<4") == 8
    assert oldest_minor("~=3.10") == 10
    assert oldest_minor(">3.9") == 9  # 3.9.1 is above 3.9
    assert oldest_minor("") is None
    assert oldest_minor("nonsense") is None
    assert too_new("import tomllib\n", ">=3.11") == ()
