"""How a git bundle becomes /base/repo inside a sandbox, as the step's user.

Not `git clone`: a bundle need not name a HEAD, and a branch that points at the commit is checked
out as such, because tools ask for the branch. No hooks, no filters, no submodules, no LFS download.
Beside a bundle with a cut history lies NAME.shallow, which git wants as .git/shallow.
"""

import re
import shlex
from pathlib import Path

from orchestrator.sandbox.contract import SandboxError

BUNDLE = "/lamplighter/repo.bundle"

SCRIPT = r"""
set -eu
export GIT_CONFIG_NOSYSTEM=1 GIT_LFS_SKIP_SMUDGE=1 GIT_TEMPLATE_DIR=
commit={commit}
cd /base/repo
git init -q
git config core.hooksPath /dev/null
if [ -f {bundle}.shallow ]; then cat {bundle}.shallow > .git/shallow; fi
branch=
while read -r id name; do
    case $name in
    refs/heads/*)
        git update-ref "refs/remotes/origin/${{name#refs/heads/}}" "$id"
        if [ "$id" = "$commit" ] && [ -z "$branch" ]; then branch=${{name#refs/heads/}}; fi ;;
    refs/tags/*) git update-ref "$name" "$id" ;;
    esac
done < <(git bundle unbundle {bundle} || echo failed)
if [ -n "$branch" ]; then git checkout -q -b "$branch" "$commit" --; else git checkout -q --detach "$commit" --; fi
git config --unset core.hooksPath
test "$(git rev-parse HEAD)" = "$commit"
"""


def bundle_files(bundle: Path) -> dict[str, Path]:
    """What has to be in the sandbox: what is appended to the bundle's place there, and the file here."""
    shallow = bundle.with_name(f"{bundle.name}.shallow")
    return {"": bundle, **({".shallow": shallow} if shallow.exists() else {})}


def clone_script(commit: str, bundle: str = BUNDLE) -> str:
    """A bash script that unpacks the bundle and checks the commit out. Raises `SandboxError` for a bad id."""
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        raise SandboxError(f"{commit!r} is no full commit id.")
    return SCRIPT.format(commit=shlex.quote(commit), bundle=shlex.quote(bundle))
