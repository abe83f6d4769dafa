"""The source distribution: does it build, does it install, and does it bring what the wheel from the tree brings?

The preparation has built both; here they are judged. The proofs build again, in a fresh copy of the clone.
"""

import re

from review_agents.ports import Workspace
from review_agents.probes.prepared import Attempt, Distribution, Prepared
from review_agents.probes.source_tree import SourceTree, in_packages, under
from review_agents.probes.within import InsideFailed, run_inside
from review_agents.records import Candidate, Environment, Kind, Network, Place, Reproduction, Severity, Symptom

BUILD_S = 600.0
BUILD = (
    'work="$(mktemp -d)"\ncp -R . "$work/src"\npython3 -m venv "$work/env"\n"$work/env/bin/pip" -q install build\n'
    'cd "$work/src{folder}"\n"$work/env/bin/python" -m build --sdist --outdir "$work/dist" .\n'
)
MAKE_WHEEL = '"$work/env/bin/pip" wheel --use-pep517 --no-deps --wheel-dir "$work/wheel" "$work"/dist/*.tar.gz\n'
INSTALL = '"$work/env/bin/pip" -q install --use-pep517 --no-deps "$work"/dist/*.tar.gz\ncd "$work"\n'


def sdist_candidates(
    workspace: Workspace, prepared: Prepared, tree: SourceTree, manifest: Place | None
) -> list[Candidate]:
    """What is wrong with the first project's source distribution. `manifest` is the place to blame."""
    if not prepared.distributions or manifest is None:
        return []
    one = prepared.distributions[0]
    for purpose in ("sdist", "wheel from sdist"):
        attempt = prepared.attempt(purpose)
        if attempt is not None and not attempt.ok:
            candidate = build_fails(one, attempt, manifest)
            return [candidate] if candidate else []
    return thinner_sdist(workspace, one, tree, manifest)


def build_script(one: Distribution) -> str:
    return BUILD.replace("{folder}", "" if one.root == "." else f"/{one.root}")


def build_fails(one: Distribution, attempt: Attempt, manifest: Place) -> Candidate | None:
    """Only for an error with a name: what `pip install .` can build, the sdist has no excuse for."""
    failure = attempt.failure
    if failure is None or not failure.is_fault:
        return None
    if not re.search(r"\w+Error|[Nn]o such file|not found|does not exist", failure.reason):
        return None
    made = attempt.purpose == "sdist"
    what = (
        "its source distribution cannot be built"
        if made
        else "its source distribution does not install: something that the build needs is not in it"
    )
    told = re.split(r"[:'\"/]", failure.reason)[0].strip()
    return Candidate(
        kind=Kind.PACKAGING,
        rule="wheel.sdist-fails" if made else "wheel.sdist-incomplete",
        title=f"{one.name} installs from the repository, but {what} ({failure.reason[:100]})",
        description=(
            f"`pip install .` works, and {what}: {failure.reason}. Whoever packages or installs {one.name} from its "
            "source distribution (Linux distributions, platforms without a wheel) cannot."
        ),
        severity=Severity.MEDIUM,
        places=(manifest,),
        reproduction=Reproduction(
            command=f"set -e\n{build_script(one)}" + ("" if made else MAKE_WHEEL),
            expected="the source distribution builds and installs",
            observed=failure.reason,
            environment=Environment.NONE,
            network=Network.EGRESS,
            symptom=Symptom(nonzero=True, contains=(told,)),
            timeout_s=BUILD_S,
        ),
        shape=told,
    )


def thinner_sdist(workspace: Workspace, one: Distribution, tree: SourceTree, manifest: Place) -> list[Candidate]:
    """Files of the packages that are in the wheel from the tree and not in the wheel from the sdist."""
    if not one.sdist:
        return []
    try:
        said = run_inside(workspace, "wheel_files", one.sdist, environment=Environment.PLAIN, python="python")
    except InsideFailed:
        return []
    root = tree.import_root(one) or "."
    direct = {path for path in one.files if in_packages(path, one) and under(root, path) in tree.tracked}
    lost = sorted(direct - set(said))
    if not lost or not said:
        return []
    more = f" and {len(lost) - 1} more files" if len(lost) > 1 else ""
    check = (
        f"import importlib.metadata as m; assert {lost[0]!r} in [str(f) for f in m.files({one.name!r})], "
        f"'not installed: {lost[0]}'"
    )
    return [
        Candidate(
            kind=Kind.PACKAGING,
            rule="wheel.sdist-incomplete",
            title=f"Installed from its source distribution, {one.name} lacks {lost[0]}{more}",
            description=(
                f"The wheel built from the repository holds {', '.join(lost[:5])}; the one built from the source "
                "distribution does not, so the two installations differ."
            ),
            severity=Severity.MEDIUM,
            places=(manifest,),
            reproduction=Reproduction(
                command=f'set -e\n{build_script(one)}{INSTALL}"$work/env/bin/python" -c "{check}"',
                expected=f"{lost[0]} is installed either way",
                observed=f"{lost[0]} is missing",
                environment=Environment.NONE,
                network=Network.EGRESS,
                symptom=Symptom(nonzero=True, contains=(f"not installed: {lost[0]}",)),
                timeout_s=BUILD_S,
            ),
            shape=f"sdist lacks {lost[0].rpartition('/')[0]}",
        )
    ]
