"""One commit of a mirror: what is read of it, and the bundle that goes into the sandbox. Nothing is checked out."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clients.git_command import GitCommand, GitFailed, TooLarge, printable
from orchestrator.clients.git_target import FULL_OID, GitRules
from review_agents.ports import UnknownRef

FULL_HISTORY_BYTES = 64 << 20  # above this the bundle is shallow
SHALLOW_COMMITS = 50  # at least; more where the nearest tag is further back
DEEPEST_TAG = 2000
SHOWN_BYTES, CONTENT_BYTES = 4 << 20, 64 << 20  # of a file; a larger one is not read
LONGEST_RANGE = 5000  # commits that are looked through for an earlier one
FILE_MODES = (b"100644", b"100755")
LFS, LARGEST_POINTER = b"version https://git-lfs.github.com/spec/", 1024  # bytes, by its specification
LONGEST_LINK = 4096  # bytes; no kernel follows a longer one
MOST_LOOKED_AT = 15_000  # links or small files; at their longest they stay below what git may answer
VIEW = "view-"  # begins the names of folders that live only as long as their process


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a commit's tree."""

    mode: bytes
    oid: str
    size: int  # 0 for what is no file
    name: bytes


class Checkout:
    """One commit of a mirror, and what can be read of it without checking anything out."""

    def __init__(self, command: GitCommand, mirror: Path, commit: str, rules: GitRules):
        self._command = command
        self._mirror = mirror
        self._rules = rules
        self.commit = commit
        self._blobs: dict[str, str] | None = None

    def date(self) -> str:
        """Committer date, ISO 8601 with offset."""
        return (
            self._git("log", "-1", "--no-show-signature", "--format=%cI", self.commit, action="read the date")
            .decode()
            .strip()
        )

    def files(self) -> tuple[str, ...]:
        """Tracked files and symbolic links, sorted; submodules are not among them."""
        return tuple(sorted(readable(one.name) for one in self._tree() if one.mode != b"160000"))

    def submodules(self) -> tuple[str, ...]:
        return tuple(sorted(readable(one.name) for one in self._tree() if one.mode == b"160000"))

    def links(self) -> tuple[str, ...]:
        """Tracked symbolic links."""
        return tuple(sorted(readable(one.name) for one in self._tree() if one.mode == b"120000"))

    def links_outside(self) -> tuple[str, ...]:
        """Tracked symbolic links that lead out of the tree."""
        links = [one for one in self._tree() if one.mode == b"120000" and one.size <= LONGEST_LINK][:MOST_LOOKED_AT]
        found = self._contents(links)
        return tuple(sorted(readable(one.name) for one in links if leads_outside(one.name, found[one.oid])))

    def lfs_pointers(self) -> tuple[str, ...]:
        """Tracked files whose content is not in the repo but in Git LFS's store, which is not asked."""
        listings = [name for name in self.files() if name.rpartition("/")[2] == ".gitattributes"]
        if not any("filter=lfs" in (self.show(name) or "") for name in listings):
            return ()
        files = [one for one in self._tree() if one.mode in FILE_MODES]
        small = [one for one in files if len(LFS) < one.size <= LARGEST_POINTER][:MOST_LOOKED_AT]
        found = self._contents(small)
        return tuple(sorted(readable(one.name) for one in small if found[one.oid].startswith(LFS)))

    def blobs(self) -> Mapping[str, str]:
        """Git's id of each tracked file's content; of files alone, without links and submodules."""
        if self._blobs is None:
            self._blobs = {readable(one.name): one.oid for one in self._tree() if one.mode in FILE_MODES}
        return self._blobs

    def show(self, path: str, *, limit_bytes: int = SHOWN_BYTES) -> str | None:
        """The file's text at this commit, undecodable bytes replaced; None where there is no such file."""
        content = self.content(path, limit_bytes=limit_bytes)
        return None if content is None else content.decode("utf-8", "replace")

    def content(self, path: str, *, limit_bytes: int = CONTENT_BYTES) -> bytes | None:
        """The file as it is at this commit; None where there is no such file, or it is larger."""
        try:
            return self._git(
                "cat-file", "blob", f"{self.commit}:{path}", action="read a file", output_bytes=limit_bytes
            )
        except (GitFailed, TooLarge, ValueError):  # ValueError: a null byte in the path
            return None

    def changed(self, since: str) -> tuple[str, ...]:
        """Files that differ between an earlier commit of this mirror and this one."""
        if not FULL_OID.fullmatch(since):
            raise UnknownRef(f'"{printable(since)}" is not a full commit id.')
        listing = self._git(
            "diff-tree", "-r", "-z", "--name-only", "--no-renames", since, self.commit, action="compare commits"
        )
        return tuple(readable(name) for name in listing.split(b"\0") if name)

    def since(self, earlier: str) -> tuple[str, ...]:
        """The commits after an earlier one up to and including this one, along first parents, oldest first."""
        if not FULL_OID.fullmatch(earlier):
            raise UnknownRef(f'"{printable(earlier)}" is not a full commit id.')
        listing = self._git(
            "rev-list", "--first-parent", f"--max-count={LONGEST_RANGE}", self.commit, action="list commits"
        )
        commits = listing.decode().split()
        return tuple(reversed(commits[: commits.index(earlier)])) if earlier in commits else ()

    def parent(self) -> str:
        """The first parent; empty for a first commit."""
        words = self._git("rev-list", "--parents", "--max-count=1", self.commit, action="find the parent").decode()
        return [*words.split(), "", ""][1]

    def last_tag(self) -> str:
        """The commit of the nearest tag in the history before this one; empty when there is none."""
        parent = self.parent()
        if not parent:
            return ""
        try:
            tag = self._git("describe", "--tags", "--abbrev=0", parent, action="find a tag").decode().strip()
            return self._git("rev-list", "--max-count=1", f"refs/tags/{tag}", action="find a tag").decode().strip()
        except GitFailed:
            return ""

    def subject(self) -> str:
        """The first line of the commit's message."""
        said = self._git("log", "-1", "--no-show-signature", "--format=%s", self.commit, action="read the message")
        return said.decode("utf-8", "replace").strip()

    def check_size(self, target: str) -> None:
        """Raise `TooLarge` when the files, unpacked, are over the cap: a small pack can hold a huge file."""
        total = sum(one.size for one in self._tree())
        if total <= self._rules.max_repo_bytes:
            return
        largest = max(self._tree(), key=lambda one: one.size)
        raise TooLarge(
            f'"{printable(target)}" unpacks to {total >> 20} MiB, more than the '
            f"{self._rules.max_repo_bytes >> 20} MiB allowed; the largest file is "
            f"{printable(readable(largest.name))} with {largest.size >> 20} MiB. "
            "Raise LAMPLIGHTER_MAX_REPO_BYTES to review it."
        )

    @contextmanager
    def bundle(self) -> Iterator[Path]:
        """A git bundle with HEAD, the branch `review` and the tags in the commit's history; gone afterwards.

        The history is whole where it is small. Else it ends some commits behind the nearest tag, so that versions
        from tags still come out right, and a file `NAME.shallow` beside the bundle lists the commits whose parents
        are missing: whoever clones writes it to `.git/shallow` before fetching from the bundle.
        """
        with self.view() as view:
            shallow = self._history_bytes() > FULL_HISTORY_BYTES
            if shallow:
                self._make_shallow(view)
            bundle = view / "review.bundle"
            self._run(
                view,
                "bundle",
                "create",
                "--quiet",
                str(bundle),
                "HEAD",
                "refs/heads/review",
                "--tags",
                action="make a bundle",
            )
            if (view / "shallow").exists():
                (view / "shallow").replace(view / "review.bundle.shallow")
            yield bundle

    @contextmanager
    def view(self) -> Iterator[Path]:
        """A git folder of ours that borrows the mirror's objects, with this commit as its only branch."""
        with tempfile.TemporaryDirectory(prefix=VIEW, dir=self._mirror.parent) as folder:
            view = Path(folder)
            self._command.run("init", "--quiet", "--bare", "--", folder, action="make a view")
            (view / "objects" / "info" / "alternates").write_text(f"{self._mirror / 'objects'}\n")
            tags = self._git(
                "for-each-ref",
                f"--merged={self.commit}",
                "--format=create %(refname) %(objectname)",
                "refs/tags",
                action="list tags",
            )
            refs = tags + f"create refs/heads/review {self.commit}\n".encode()
            self._run(view, "update-ref", "--stdin", action="name the commit", stdin=refs)
            self._run(view, "symbolic-ref", "HEAD", "refs/heads/review", action="name the commit")
            yield view

    def _make_shallow(self, view: Path) -> None:
        """Cut the view's history behind the nearest tag."""
        depth = SHALLOW_COMMITS
        try:
            tag = self._run(view, "describe", "--tags", "--abbrev=0", self.commit, action="find a tag").decode().strip()
            behind = int(self._run(view, "rev-list", "--count", f"{tag}..{self.commit}", "--", action="count commits"))
            depth = max(depth, min(behind + 2, DEEPEST_TAG))
        except GitFailed:
            pass  # no tag: any depth will do
        boundary = self._run(
            view, "rev-list", "--first-parent", f"--max-count={depth}", self.commit, action="list commits"
        ).split()[-1]
        kept = self._run(
            view, "rev-list", "--parents", self.commit, f"^{boundary.decode()}", action="list commits"
        ).splitlines()
        inside = {line.split()[0] for line in kept} | {boundary}
        cut = {line.split()[0] for line in kept if any(parent not in inside for parent in line.split()[1:])} | {
            boundary
        }
        (view / "shallow").write_bytes(b"".join(oid + b"\n" for oid in sorted(cut)))
        self._drop_tags_outside(view)

    def _drop_tags_outside(self, view: Path) -> None:
        inside = set(self._run(view, "rev-list", self.commit, action="list commits").split())
        listing = self._run(
            view, "for-each-ref", "--format=%(refname) %(objectname) %(*objectname)", "refs/tags", action="list tags"
        )
        gone = [line.split()[0] for line in listing.splitlines() if line.split()[-1] not in inside]
        orders = b"".join(b"delete " + name + b"\n" for name in gone)
        self._run(view, "update-ref", "--stdin", action="leave out old tags", stdin=orders)

    def _history_bytes(self) -> int:
        return bytes_below(self._mirror / "objects")

    def _tree(self) -> Iterator["Entry"]:
        listing = self._git("ls-tree", "-r", "-l", "-z", "--full-tree", self.commit, action="list the files")
        for entry in listing.split(b"\0"):
            if entry:
                about, name = entry.split(b"\t", 1)
                mode, _, oid, size = about.split()
                yield Entry(mode, oid.decode(), int(size) if size.isdigit() else 0, name)

    def _contents(self, entries: Sequence[Entry]) -> dict[str, bytes]:
        """Of small blobs, by id, in one process."""
        wanted = sorted({one.oid for one in entries})
        if not wanted:
            return {}
        asked = "".join(f"{oid}\n" for oid in wanted).encode()
        answer = memoryview(self._run(self._mirror, "cat-file", "--batch", action="read small files", stdin=asked))
        found: dict[str, bytes] = {}
        at = 0
        for oid in wanted:  # each: id, type and size in a line, the content, a line's end
            line_end = bytes(answer[at : at + 200]).index(b"\n") + at
            size = int(bytes(answer[at:line_end]).split()[2])
            found[oid] = bytes(answer[line_end + 1 : line_end + 1 + size])
            at = line_end + size + 2
        return found

    def _git(self, *arguments: str, action: str, output_bytes: int = 64 << 20) -> bytes:
        return self._command.run(
            *arguments, git_dir=self._mirror, action=action, timeout_s=self._rules.timeout_s, output_bytes=output_bytes
        )

    def _run(self, view: Path, *arguments: str, action: str, stdin: bytes = b"") -> bytes:
        return self._command.run(*arguments, git_dir=view, action=action, stdin=stdin, timeout_s=self._rules.timeout_s)


def bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder of a mirror; packs are few, so a look is cheap."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(parent, name), follow_symlinks=False).st_size
            except FileNotFoundError:
                continue  # renamed meanwhile
    return total


def leads_outside(name: bytes, target: bytes) -> bool:
    """Whether a symbolic link of a tree has a target that is not in it, as far as the link's own text says."""
    place = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return place.startswith(b"/") or place == b".." or place.startswith(b"../")


def readable(name: bytes) -> str:
    """A file name as text; bytes that are no UTF-8 come out as escapes, because records must be valid text."""
    return name.decode("utf-8", "backslashreplace")
