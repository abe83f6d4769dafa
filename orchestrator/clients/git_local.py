"""Whether a folder on this machine may be served to us by git, and where its git folder is.

A folder can be prepared so that git, serving it, hands out another folder's content: through a `.git` that points
elsewhere, alternates, or symbolic links among its objects. The service's user may read more than the person who
submits, so all of these must stay inside the folder itself or inside the roots that the operator allows.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from review_agents.ports import UnreachableRepo

MOST_LINKS_LOOKED_AT = 200_000  # entries below the git folder; more than that is refused rather than trusted


@dataclass(frozen=True, slots=True)
class LocalRepo:
    folder: Path  # real path of what was named
    git_dir: Path  # its own git folder (of the worktree, if it is one): HEAD and index are here
    common_dir: Path  # where objects and refs are; the same for all worktrees
    bare: bool


def look_at(path: str, roots: Sequence[Path] = ()) -> LocalRepo:
    """The repo in that folder. Raises `UnreachableRepo` where there is none or it reaches outside."""
    folder = Path(os.path.realpath(path))
    if not folder.is_dir():
        raise UnreachableRepo(f'There is no folder "{path}" on this machine.')
    inside = (folder, *(Path(os.path.realpath(root)) for root in roots))
    dot_git = folder / ".git"
    if dot_git.is_symlink():
        raise UnreachableRepo(f'"{path}" is not accepted: its .git is a symbolic link. Name the folder it points to.')
    if dot_git.is_file():
        repo = _worktree(folder, dot_git)
        inside = (*inside, repo.common_dir)
        if roots and not _below(repo.common_dir, inside[1:-1]):
            raise UnreachableRepo(f'"{path}" is a worktree of {repo.common_dir}, which is outside the allowed folders.')
    elif dot_git.is_dir():
        repo = LocalRepo(folder, dot_git, dot_git, bare=False)
    elif (folder / "HEAD").is_file() and (folder / "objects").is_dir():
        repo = LocalRepo(folder, folder, folder, bare=True)
    else:
        raise UnreachableRepo(f'"{path}" is not a git repo: it has no .git folder. Name the folder that holds .git.')
    _stays_inside(path, repo.common_dir, inside)
    return repo


def _worktree(folder: Path, dot_git: Path) -> LocalRepo:
    """A linked worktree, accepted only if the repo it names lists it too: nobody can forge that half of the link."""
    refused = UnreachableRepo(
        f'"{folder}" is not accepted: its .git file names a git folder that does not belong to it.'
    )
    line = _first_line(dot_git)
    if not line.startswith("gitdir: "):
        raise refused
    git_dir = Path(os.path.realpath(folder / line.removeprefix("gitdir: ")))
    if git_dir.parent.name != "worktrees" or Path(os.path.realpath(_first_line(git_dir / "gitdir"))) != dot_git:
        raise refused
    return LocalRepo(folder, git_dir, git_dir.parent.parent, bare=False)


def _stays_inside(path: str, git_dir: Path, inside: Sequence[Path]) -> None:
    for link in _links(git_dir):
        if not _below(Path(os.path.realpath(link)), inside):
            raise UnreachableRepo(
                f'"{path}" is not accepted: {link.relative_to(git_dir)} in its git folder points outside it.'
            )
    for alternate in _alternates(git_dir / "objects", depth=5):
        if not _below(alternate, inside):
            raise UnreachableRepo(
                f'"{path}" is not accepted: it borrows objects from {alternate}, outside the folder. '
                "Run `git repack -ad` and remove .git/objects/info/alternates there, or submit the other repo's URL."
            )
    if (git_dir / "commondir").exists():
        raise UnreachableRepo(
            f'"{path}" is not accepted: its git folder has a commondir file, which only worktrees have.'
        )


def _links(folder: Path) -> Iterator[Path]:
    """Symbolic links below the folder; none of them is entered."""
    seen = 0
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            seen += 1
            if seen > MOST_LINKS_LOOKED_AT:
                raise UnreachableRepo(f'The git folder "{folder}" has over {seen - 1} files. Run `git gc` there first.')
            if os.path.islink(entry := os.path.join(parent, name)):
                yield Path(entry)


def _alternates(objects: Path, depth: int) -> Iterator[Path]:
    """Folders that git would also read objects from, each followed as git does."""
    try:
        lines = (objects / "info" / "alternates").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        if not line or line.startswith("#"):
            continue
        borrowed = Path(os.path.realpath(objects / line.strip('"')))
        yield borrowed
        if depth > 0:
            yield from _alternates(borrowed, depth - 1)


def _below(path: Path, folders: Sequence[Path]) -> bool:
    return any(path == folder or folder in path.parents for folder in folders)


def _first_line(file: Path) -> str:
    try:
        with file.open(errors="surrogateescape") as opened:
            return opened.readline(4096).rstrip("\n")
    except OSError:
        return ""
