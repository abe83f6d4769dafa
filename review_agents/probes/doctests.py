"""Examples in the docstrings of the installed package, where the project itself runs them or shows many.

README and docs pages are the `readme` probe's business.
"""

import json
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from review_agents.copied import piece
from review_agents.ports import NoSuchFile, Workspace
from review_agents.probes.claims import Claim, candidate_of, merge_claims
from review_agents.probes.comparing import Comparison, Verdict, clean, compare
from review_agents.probes.own import environment_of
from review_agents.probes.prepare import Prepared
from review_agents.probes.python_errors import ENVIRONMENTAL, first_line
from review_agents.probes.recipes import heredoc
from review_agents.probes.reproducing import printing, shows, steady_text
from review_agents.probes.shell import Package
from review_agents.probes.source_tree import SourceTree, is_test_path
from review_agents.probes.verdicts import depends_on_zone_data, shown_part
from review_agents.probes.within import send
from review_agents.records import (
    Copied,
    Environment,
    Kind,
    Place,
    ProbeResult,
    ProbeState,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)

NAME = "doctests"

LIMIT_S = 120.0
ITEM_S = 20.0
MOST_MODULES = 150
SETTINGS = ("pyproject.toml", "setup.cfg", "tox.ini", "pytest.ini", "noxfile.py", "Makefile", "conftest.py", "setup.py")
USES = re.compile(
    r"doctest[-_]modules|--doctest|doctest\.(?:testmod|testfile|DocTestSuite)|-m doctest|doctest_plus|xdoctest|sybil",
    re.I,
)
SPECIAL = re.compile(r"(?:^|\.)(?:__main__|setup|conftest|_?vendor\w*|tests?|testing|_tests?|benchmarks?)(?:\.|$)")


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    environment = environment_of(prepared)
    if prepared.not_installed:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=prepared.not_installed)
    if environment is None or not prepared.import_packages:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, reason="no importable package")
    tree = SourceTree(workspace, repo, prepared)
    modules = modules_with_examples(tree, prepared)
    if not modules:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, reason="no `>>>` in the package's docstrings")
    used = where_used(workspace, repo)
    environment = Environment.TEST if prepared.installed_test and not prepared.editable else environment
    run = Docstrings(workspace, prepared, tree, environment)
    first = run.run(list(modules))
    suspects = list(run.suspects(first))
    claims: list[Claim] = []
    if suspects:
        later = run.run(sorted({module for module, *_ in suspects}), perturbed=True)
        claims = list(run.claims(suspects, later, used))
    candidates = tuple(candidate_of(claim) for claim in merge_claims(claims))
    counts = run.counts
    facts = {"modules": list(modules), "used_by_the_project": used, "counts": counts, "differing": run.differing[:60]}
    summary = (
        f"{counts['ran']} of {counts['examples']} examples in docstrings of {len(modules)} module(s) ran: "
        f"{counts['matched']} as shown, {len(candidates)} otherwise"
    )
    if not first:
        return ProbeResult(
            probe=NAME, state=ProbeState.COULD_NOT_RUN, reason="no module could be imported", facts=facts
        )
    state = ProbeState.FAILED if candidates else ProbeState.PASSED
    left_out = tuple(path for module, path in modules.items() if module not in first or module in run.unproved)
    return ProbeResult(probe=NAME, state=state, summary=summary, facts=facts, candidates=candidates, left_out=left_out)


def modules_with_examples(tree: SourceTree, prepared: Prepared) -> dict[str, str]:
    """Module -> tracked file, for installed modules whose source holds `>>>`."""
    found: dict[str, str] = {}
    for one in prepared.distributions:
        for installed in one.files:
            if not installed.endswith(".py") or installed.startswith(".."):
                continue
            module = installed.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            if SPECIAL.search(module) or not any(
                module == name or module.startswith(f"{name}.") for name in one.import_packages
            ):
                continue
            path = tree.tracked_path(f"/site-packages/{installed}")
            if path and not is_test_path(path) and ">>> " in tree.text(path):
                found[module] = path
            if len(found) >= MOST_MODULES:
                return found
    return found


def where_used(workspace: Workspace, repo: Repo) -> str:
    """The settings file by which the project runs its docstrings itself; empty when it does not seem to."""
    tests = [path for path in repo.files if is_test_path(path) and "doctest" in path.lower()]
    for path in (*(name for name in SETTINGS if name in repo.files), *tests[:3]):
        try:
            if USES.search(workspace.read(path)):
                return path
        except NoSuchFile:
            continue
    return ""


Suspect = tuple[str, dict[str, Any], int, dict[str, Any]]  # module, test, index of the example, the example


class Docstrings:
    def __init__(self, workspace: Workspace, prepared: Prepared, tree: SourceTree, environment: Environment):
        self.workspace, self.prepared, self.tree, self.environment = workspace, prepared, tree, environment
        self.package = Package(modules=prepared.import_packages)
        self.counts = {"examples": 0, "ran": 0, "matched": 0}
        self.differing: list[str] = []
        self.unproved: set[str] = set()  # modules in which something was seen that no script of its own shows

    def run(self, modules: list[str], *, perturbed: bool = False) -> dict[str, dict[str, Any]]:
        """Module -> what came of its docstrings. One that ends the interpreter is left out, the rest goes on."""
        records: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + LIMIT_S * 2
        left = list(modules)
        while left and time.monotonic() < deadline:
            started, got = self._once(left, perturbed)
            records |= got
            done = set(got) | ({started} if started else set())
            remaining = [module for module in left if module not in done]
            if len(remaining) == len(left):
                break
            left = remaining
        return {name: record for name, record in records.items() if not record.get("error")}

    def _once(self, modules: list[str], perturbed: bool) -> tuple[str, dict[str, dict[str, Any]]]:
        driver, surroundings = send(self.workspace, "run_python"), send(self.workspace, "surroundings")
        job, result, folder = (
            "/tmp/lamplighter-doctests.json",
            "/tmp/lamplighter-doctests.jsonl",
            "/tmp/lamplighter-doctests",
        )
        content = {"modules": modules, "own": self.prepared.import_packages, "seconds": ITEM_S}
        self.workspace.write(job, json.dumps(content))
        late = (
            f"mkdir -p {folder}-late && cp {surroundings} {folder}-late/sitecustomize.py && "
            f"export PYTHONPATH={folder}-late TZ=XYZ-5:45 PYTHONHASHSEED=4321; "
        )
        self.workspace.run(
            f"mkdir -p {folder} && cd {folder} && rm -f {result}; {late if perturbed else 'export PYTHONHASHSEED=0; '}"
            f"python {driver} {job} {result} < /dev/null > /dev/null 2>&1",
            environment=self.environment,
            timeout_s=LIMIT_S,
        )
        try:
            lines = self.workspace.read(result, limit_bytes=40_000_000).splitlines()
        except NoSuchFile:
            return "", {}
        started, records = "", {}
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if "start" in entry:
                started = entry["start"]
            elif "id" in entry:
                records[entry["id"]] = entry
        return started, records

    def suspects(self, records: dict[str, dict[str, Any]]) -> Iterable[Suspect]:
        """The first example of each docstring that is otherwise than shown; what follows it may follow from it."""
        for module, record in records.items():
            for test in record["tests"]:
                spoilt = False
                for at, example in enumerate(test["examples"]):
                    self.counts["examples"] += 1
                    if example.get("skipped") or spoilt:
                        continue
                    self.counts["ran"] += 1
                    agrees = self._agrees(example)
                    self.counts["matched"] += agrees and bool(example["want"].strip())
                    if agrees:
                        continue
                    spoilt = True
                    self.differing.append(f"{test['name']}: {first_line(example['source'])}")
                    if self._is_claim(example):
                        yield module, test, at, example

    def _agrees(self, example: dict[str, Any]) -> bool:
        error = example.get("error")
        if error:
            wanted = (example.get("want_error") or "").split(":")[0].strip().split(".")[-1]
            return bool(wanted) and (wanted in error.get("bases", ()) or wanted == "...")
        if not example["want"].strip():
            return True
        return self._comparison(example, stable=True).verdict.agrees

    def _comparison(self, example: dict[str, Any], *, stable: bool) -> Comparison:
        return compare(shown_part(example["want"]), example["got"], stable=stable, whole=True)

    def _is_claim(self, example: dict[str, Any]) -> bool:
        """Whether the docstring promised something that did not come, for no reason of ours."""
        error = example.get("error")
        if error:
            if error["type"] in ENVIRONMENTAL or error.get("syntax") or not error.get("own_frames"):
                return False
            if error["type"] in ("NameError", "ModuleNotFoundError", "ImportError"):
                return False
            return bool(example["want"].strip()) and not example.get("want_error")
        return self._comparison(example, stable=True).verdict is Verdict.DIFFERENT

    def claims(self, suspects: list[Suspect], later: dict[str, dict[str, Any]], used: str) -> Iterable[Claim]:
        """One for each example: docstrings are copied from function to method and back."""
        known: dict[tuple[str, str], Claim] = {}
        for suspect in suspects:
            example = suspect[3]
            key = (example["source"].strip(), example["want"].strip())
            claim = self.claim(suspect, later, used)
            if claim is None:
                self.unproved.add(suspect[0])
                continue
            first = known.setdefault(key, claim)
            if first is not claim:
                claim = replace(claim, symbol=first.symbol)
            yield claim

    def claim(self, suspect: Suspect, later: dict[str, dict[str, Any]], used: str) -> Claim | None:
        """A claim when the same comes at another time, and from a script of its own."""
        module, test, at, example = suspect
        again = self._same_example(later, module, test["name"], at)
        if again is None or bool(again.get("error")) != bool(example.get("error")):
            return None
        if not example.get("error"):
            stable = clean(again["got"]) == clean(example["got"])
            code = "".join(one["source"] for one in test["examples"])
            if (
                depends_on_zone_data(code, example["want"])
                or not stable
                or self._comparison(example, stable=True).verdict is not Verdict.DIFFERENT
            ):
                return None
        code = "".join(one["source"] for one in test["examples"][:at])
        last = example["source"] if example.get("error") else printing(example["source"])
        script = 'cd "$(mktemp -d)"\n' + heredoc(
            "python -", f"from {module} import *\nimport {module}\n{self._names(module)}{code}{last}"
        )
        symptom = self._symptom(example)
        if not shows(self.workspace, script, symptom, self.environment):
            return None
        return self._claim(module, test, example, script, symptom, used)

    def _names(self, module: str) -> str:
        """A docstring sees every name of its module, also those that `import *` leaves out."""
        return (
            f"globals().update({{k: v for k, v in vars(__import__('sys').modules['{module}']).items() "
            "if not k.startswith('__')})\n"
        )

    def _same_example(
        self, records: dict[str, dict[str, Any]], module: str, name: str, at: int
    ) -> dict[str, Any] | None:
        for test in records.get(module, {}).get("tests", ()):
            if test["name"] == name and at < len(test["examples"]):
                return dict(test["examples"][at])
        return None

    def _symptom(self, example: dict[str, Any]) -> Symptom:
        error = example.get("error")
        if error:
            return Symptom(
                nonzero=True,
                contains=(steady_text(f"{error['type']}: {first_line(error['message'])}") or error["type"],),
            )
        comparison = self._comparison(example, stable=True)
        real = steady_text(comparison.real.strip()) if comparison.real.strip() else ""
        lacks = (comparison.shown.strip(),) if comparison.shown.strip() and comparison.shown.strip() not in real else ()
        if not real and not lacks:
            lacks = (first_line(example["want"]),)
        return Symptom(exit=0, contains=(real,) if real else (), lacks=lacks)

    def _claim(
        self, module: str, test: dict[str, Any], example: dict[str, Any], script: str, symptom: Symptom, used: str
    ) -> Claim:
        path = self.tree.tracked_path(f"/site-packages/{module.replace('.', '/')}.py") or self.tree.tracked_path(
            f"/site-packages/{module.replace('.', '/')}/__init__.py"
        )
        line = self._line(path, example)
        name = test["name"].removeprefix(f"{module}.") or module
        error = example.get("error")
        comparison = self._comparison(example, stable=True)
        code = first_line(example["source"])
        came = (
            f"raises {error['type']}: {first_line(error['message'])}"
            if error
            else f"gives `{comparison.real or first_line(example['got']) or 'nothing'}`"
        )
        shown = comparison.shown or first_line(example["want"])
        quote = self.tree.text(path).splitlines()[line - 1].strip() if path and line else ""
        return Claim(
            kind=Kind.DOCUMENTATION,
            rule="docstring.output-differs",
            symbol=test["name"],
            title=f"The docstring of {name} shows `{shown}` for `{code}`, but it {came}",
            description=(
                f"{path} line {line}: the example in the docstring of {test['name']} shows "
                f"`{shown}` for `{code}`; run with the installed "
                f"package it {came}." + (f" The project runs its docstrings itself ({used})." if used else "")
            ),
            severity=Severity.LOW,
            places=(Place(file=path, line=line, symbol=name, quote=quote),),
            reproduction=Reproduction(
                command=script,
                expected=f"`{shown}`",
                observed=f"it {came}",
                environment=self.environment,
                control=f'cd "$(mktemp -d)"\npython -c "import {module}"\n',
                symptom=symptom,
                copied=self._copied(path, line, example),
            ),
        )

    def _copied(self, path: str, line: int | None, example: dict[str, Any]) -> tuple[Copied, ...]:
        """The docstring from its beginning to what it shows for the example."""
        if not path or line is None:
            return ()
        lines = self.tree.text(path).splitlines()
        quotes = [at for at, text in enumerate(lines[:line]) if '"""' in text or "'''" in text]
        end = line + example["source"].rstrip("\n").count("\n") + len(example["want"].splitlines())
        return (piece(path, "\n".join(lines[quotes[-1] if quotes else line - 1 : end + 1])),)

    def _line(self, path: str, example: dict[str, Any]) -> int | None:
        code = first_line(example["source"])
        lines = self.tree.text(path).splitlines()
        near = [at for at, line in enumerate(lines, 1) if f">>> {code}" in line]
        return min(near, key=lambda at: abs(at - example["line"]), default=None)
