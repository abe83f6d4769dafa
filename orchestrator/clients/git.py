"""Taking repos in: one bare mirror per repo, fetched so that neither URL nor repo can make git do anything else.

Nothing is ever checked out on this machine. Quotes, file lists and dates are read from the mirror's objects, and a
bundle of them goes into the sandbox, where it is cloned as the step's user.
"""

import fcntl
import hashlib
import ipaddress
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clients import outward
from orchestrator.clients.git_checkout import VIEW, Checkout, bytes_below, readable
from orchestrator.clients.git_command import GitCommand, GitFailed, TooLarge, printable
from orchestrator.clients.git_target import FULL_OID, SHORT_OID, GitRules, Source, check_ref, checked
from orchestrator.clients.outward import Outward
from review_agents.ports import EmptyRepo, RemoteHead, RepoProblem, UnknownRef, UnreachableRepo

FETCHED = "refs/lamplighter/fetched"
KEPT = "refs/lamplighter/kept"  # one ref per reviewed commit, so that no clean-up takes it away
FREE_BYTES = 256 << 20  # a fetch is ended rather than fill the disk below this

Asked = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Found:
    """What a remote says of a ref. `commit` is empty where only a fetch can tell."""

    name: str  # full name, for example refs/heads/main, or an object id as asked for
    commit: str
    default: str  # the branch that HEAD names, or ""

    @property
    def short(self) -> str:
        return self.name.removeprefix("refs/heads/").removeprefix("refs/tags/")


class Git:
    """All repos' mirrors, below one folder. Safe to use from several threads and processes."""

    def __init__(self, folder: Path, rules: GitRules):
        self._folder = folder
        self._rules = rules
        self._command = GitCommand(folder / "home")

    def probe(self, url: str, ref: str = "") -> RemoteHead:
        """What the ref (empty: HEAD) names there now. Raises `RepoProblem` of the fitting kind."""
        source = checked(url, self._rules)
        found = self._find(source, url, ref)
        return RemoteHead(commit=found.commit or found.name, ref=found.short, default_ref=found.default)

    def fetch(self, url: str, ref: str = "", *, cancelled: Asked = lambda: False) -> Checkout:
        """Bring the mirror up to date with the ref and open its commit. One at a time per mirror.

        Raises `RepoProblem`; `TooLarge` as soon as the mirror grows past the cap; `Stopped`.
        """
        source = checked(url, self._rules)
        found = self._find(source, url, ref)
        mirror = self._mirror(url)
        with locked(mirror):
            if not (mirror / "HEAD").exists():
                shutil.rmtree(mirror, ignore_errors=True)
                self._command.run("init", "--quiet", "--bare", "--", str(mirror), action="make a mirror")
            forget_locks(mirror)
            commit = self._bring(source, mirror, url, found, cancelled)
            self._command.run("update-ref", f"{KEPT}/{commit}", commit, git_dir=mirror, action="keep the commit")
            self._tidy(mirror)
        checkout = Checkout(self._command, mirror, commit, self._rules)
        checkout.check_size(url)
        return checkout

    def sweep(self) -> tuple[str, ...]:
        """Remove what a killed process left in our folder; names what went. Nobody may be reviewing on this machine."""
        left = [path for path in self._folder.glob(f"{VIEW}*") if path.is_dir()]
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return tuple(path.name for path in left)

    def at(self, url: str, commit: str) -> Checkout:
        """A commit fetched earlier. Raises `UnknownRef` when this machine's mirror lacks it."""
        if not FULL_OID.fullmatch(commit):
            raise UnknownRef(f'"{printable(commit)}" is not a full commit id.')
        mirror = self._mirror(url)
        if not (mirror / "HEAD").exists() or not self._has(mirror, commit):
            raise UnknownRef(f"The mirror of {printable(url)} on this machine lacks commit {commit}.", retry=True)
        return Checkout(self._command, mirror, commit, self._rules)

    def uncommitted(self, url: str, commit: str) -> tuple[str, ...]:
        """Changed and untracked files of a local repo, which a review of the commit does not see.

        The folder's own configuration is never read (it can name programs to run): git looks at its index and
        files with a git folder of ours. Empty for a bare repo and for remotes. Raises `RepoProblem`.
        """
        local = checked(url, self._rules).local
        if local is None or local.bare:
            return ()
        with self.at(url, commit).view() as view:
            listing = self._command.run(
                "status", "--porcelain", "-z", "--no-renames", "--untracked-files=normal", "--ignore-submodules=all",
                git_dir=view, action=f"compare {printable(url)} with its commit", timeout_s=self._rules.probe_timeout_s,
                environment={"GIT_INDEX_FILE": str(local.git_dir / "index"), "GIT_WORK_TREE": str(local.folder)},
            )  # fmt: skip
        return tuple(readable(entry[3:]) for entry in listing.split(b"\0") if entry)

    def _find(self, source: Source, url: str, ref: str) -> Found:
        """Ask the source what the ref is, without fetching."""
        if ref:
            check_ref(ref)
        default, listed = self._listing(source, url, ref)
        if not ref:
            if "HEAD" not in listed:
                raise EmptyRepo(
                    f'"{printable(url)}" has no commit on its default branch, so there is nothing to review.'
                )
            return Found(f"refs/heads/{default}" if default else "HEAD", listed["HEAD"], default)
        for name in candidates(ref):
            if name in listed:
                return Found(name, listed.get(f"{name}^{{}}", listed[name]), default)
        if SHORT_OID.fullmatch(ref):
            return Found(ref, self._local_commit(source, ref), default)
        if not listed:
            raise EmptyRepo(f'"{printable(url)}" has no commit yet, or no branch "{printable(ref)}" and no HEAD.')
        raise UnknownRef(
            f'"{printable(url)}" has no branch or tag "{printable(ref)}". '
            f"Give an existing one, a full commit id, or leave it empty for {default or 'the default branch'}."
        )

    def _listing(self, source: Source, url: str, ref: str) -> tuple[str, dict[str, str]]:
        """Default branch, and the object ids of HEAD and of what the ref may mean."""
        names = ("HEAD", *(f"{name}{peel}" for name in candidates(ref) for peel in ("", "^{}"))) if ref else ("HEAD",)
        listing = self._remote(
            source, "ls-remote", "--symref", "--", source.where, *names, action=f"reach {printable(url)}"
        )
        default, listed = "", {}
        for line in listing.decode("utf-8", "replace").splitlines():
            value, _, name = line.partition("\t")
            if value.startswith("ref: refs/heads/") and name == "HEAD":
                default = value.removeprefix("ref: refs/heads/")
            elif FULL_OID.fullmatch(value):
                listed[name] = value
        return default, listed

    def _local_commit(self, source: Source, ref: str) -> str:
        """The full id for a commit id of a local repo; for a remote, a full one is believed and a short one refused."""
        if source.local is None:
            if not FULL_OID.fullmatch(ref):
                raise UnknownRef(f'There is no branch or tag "{ref}", and a commit of a remote repo needs its full id.')
            return ""
        empty = self._folder / "empty.git"  # a git folder of ours: their configuration is not read
        with locked(empty):
            if not (empty / "HEAD").exists():
                self._command.run("init", "--quiet", "--bare", "--", str(empty), action="make a git folder")
        objects = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(source.local.common_dir / "objects")}
        return self._commit(empty, ref, ref, objects)

    def _bring(self, source: Source, mirror: Path, url: str, found: Found, cancelled: Asked) -> str:
        """Fetch what is missing and return the commit."""
        if not SHORT_OID.fullmatch(found.name):
            self._fetch(source, mirror, url, [f"+{found.name}:{FETCHED}"], cancelled)
            return self._commit(mirror, FETCHED, found.name)
        commit = found.commit or found.name
        if not self._has(mirror, commit):  # branches and tags first: servers need not serve a commit by its id
            everything = ["+refs/heads/*:refs/lamplighter/heads/*", "+refs/tags/*:refs/tags/*"]
            self._fetch(source, mirror, url, everything, cancelled)
        if not self._has(mirror, commit):
            try:
                self._fetch(source, mirror, url, [f"+{commit}:{FETCHED}"], cancelled)
            except RepoProblem:
                raise UnknownRef(f'"{printable(url)}" has no commit {commit}.') from None
        return self._commit(mirror, commit, found.name)

    def _fetch(self, source: Source, mirror: Path, url: str, wanted: Sequence[str], cancelled: Asked) -> None:
        cap = self._rules.max_repo_bytes

        def too_large() -> str:
            if bytes_below(mirror / "objects") > cap:
                return (
                    f'"{printable(url)}" is larger than {cap >> 20} MiB, so fetching it was ended. '
                    "Raise LAMPLIGHTER_MAX_REPO_BYTES to review it."
                )
            if shutil.disk_usage(mirror.parent).free < FREE_BYTES:
                raise UnreachableRepo(
                    f"The disk that holds {mirror.parent} is full, so fetching {printable(url)} was ended.", retry=True
                )
            return ""

        self._forget_tags(mirror)
        try:
            self._remote(
                source, "fetch", "--quiet", "--force", "--no-write-fetch-head", "--no-recurse-submodules",
                "--no-auto-gc", "--", source.where, *wanted,
                git_dir=mirror, action=f"fetch {printable(url)}", timeout_s=self._rules.timeout_s,
                too_large=too_large, cancelled=cancelled,
            )  # fmt: skip
        except TooLarge:
            shutil.rmtree(mirror, ignore_errors=True)  # else a smaller commit would find the mirror over the cap
            raise
        finally:
            for left in (mirror / "objects" / "pack").glob("tmp_*"):
                left.unlink(missing_ok=True)

    def _remote(
        self,
        source: Source,
        *arguments: str,
        action: str,
        git_dir: Path | None = None,
        timeout_s: float | None = None,
        too_large: Callable[[], str] = lambda: "",
        cancelled: Asked = lambda: False,
    ) -> bytes:
        """Run a git verb that talks to the source, through the door that judges addresses."""
        allowed = [ipaddress.ip_network(text, strict=False) for text in self._rules.allow_ranges]
        with Outward(allowed=allowed, bytes_cap=self._rules.max_repo_bytes + (64 << 20)) as door:
            settings, environment, options = route(source, door, self._rules)
            verb, *rest = arguments
            try:
                return self._command.run(
                    *settings, verb, *options, *rest,
                    action=action, git_dir=git_dir, protocols=(source.protocol,), environment=environment,
                    timeout_s=timeout_s or self._rules.probe_timeout_s, too_large=too_large, cancelled=cancelled,
                )  # fmt: skip
            except GitFailed as error:
                if door.refused:
                    raise UnreachableRepo(
                        f"git could not {action}: {printable(door.refused[-1])}. "
                        "Private addresses are refused unless LAMPLIGHTER_EGRESS_ALLOW_RANGES lists them."
                    ) from None
                if door.spent:
                    cap = self._rules.max_repo_bytes >> 20
                    raise TooLarge(f"git could not {action}: the server sent more than {cap} MiB.") from None
                if door.failed:
                    raise UnreachableRepo(
                        f"git could not {action}: {printable(door.failed[-1])}.", retry=True
                    ) from None
                raise explained(error, action) from None

    def _mirror(self, url: str) -> Path:
        return self._folder / f"{hashlib.sha256(url.encode(errors='surrogateescape')).hexdigest()[:24]}.git"

    def _has(self, mirror: Path, commit: str) -> bool:
        try:
            self._command.run("cat-file", "-e", f"{commit}^{{commit}}", git_dir=mirror, action="look for a commit")
        except GitFailed:
            return False
        return True

    def _commit(self, mirror: Path, name: str, ref: str, environment: dict[str, str] | None = None) -> str:
        try:
            told = self._command.run(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}",
                git_dir=mirror, action="find the commit", environment=environment,
            )  # fmt: skip
        except GitFailed:
            raise UnknownRef(f'"{printable(ref)}" names no commit of this repo, or several.') from None
        return told.decode().strip()

    def _forget_tags(self, mirror: Path) -> None:
        """Tags are followed anew by every fetch, so that one that was moved or removed does not stay."""
        tags = self._command.run(
            "for-each-ref", "--format=delete %(refname)", "refs/tags", git_dir=mirror, action="list tags"
        )
        if tags:
            self._command.run("update-ref", "--stdin", git_dir=mirror, stdin=tags, action="forget old tags")

    def _tidy(self, mirror: Path) -> None:
        """Repack when fetches have piled up. That it fails is no reason to fail the review."""
        try:
            self._command.run(
                "-c", "gc.auto=6700", "-c", "gc.autoPackLimit=20", "gc", "--auto", "--quiet",
                git_dir=mirror, action="tidy the mirror", timeout_s=self._rules.timeout_s,
            )  # fmt: skip
        except GitFailed:
            return


def forget_locks(mirror: Path) -> None:
    """Remove the lock files of a git that was killed, over which every later one would stumble.

    Whoever writes in a mirror holds our own lock on it, which the kernel lets go of, so none of them is alive.
    """
    for place in (mirror.glob("*.lock"), (mirror / "refs").rglob("*.lock"), (mirror / "objects").rglob("*.lock")):
        for left in place:
            left.unlink(missing_ok=True)
    (mirror / "gc.pid").unlink(missing_ok=True)


def candidates(ref: str) -> tuple[str, ...]:
    """Full names that a ref may mean, the likeliest first."""
    if ref.startswith("refs/") or ref == "HEAD":
        return (ref,)
    return (f"refs/heads/{ref}", f"refs/tags/{ref}")


def route(source: Source, door: Outward, rules: GitRules) -> tuple[list[str], dict[str, str], list[str]]:
    """Settings, environment and options that send git through the door, or to the local repo."""
    if source.protocol == "file":
        # The served repo's configuration can name a promisor remote, from which upload-pack would fetch with a
        # program that the configuration also names. Without any protocol it cannot.
        return [], {}, ["--upload-pack=env GIT_ALLOW_PROTOCOL=none GIT_NO_LAZY_FETCH=1 git-upload-pack"]
    if source.protocol == "ssh":
        return [], {"GIT_SSH_COMMAND": ssh_command(door, rules.ssh_key), "GIT_SSH_VARIANT": "ssh"}, []
    return ["-c", f"http.proxy={door.url}"], {}, []


def ssh_command(door: Outward, key: Path | None) -> str:
    """ssh without the user's configuration, agent or questions, its connection made by the door."""
    port = door.url.rpartition(":")[2]
    identity = f"-i '{key}' -o IdentitiesOnly=yes" if key else "-o IdentityAgent=none"
    return (
        "ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o ClearAllForwardings=yes "
        f"-o PermitLocalCommand=no {identity} -o ProxyCommand='{sys.executable} -I {outward.__file__} {port} %h %p'"
    )


def explained(error: GitFailed, action: str) -> UnreachableRepo:
    """git's commonest complaints in words that help."""
    said = error.stderr
    shown = printable(said, 300, lines=True)
    if any(words in said for words in ("could not read Username", "prompts disabled", "Authentication failed")):
        return UnreachableRepo(
            f"git could not {action}: the server asks for a login, so the repo is private or does not exist."
        )
    if any(words in said for words in ("resolve host", "Connection refused", "timed out", "SOCKS")):
        return UnreachableRepo(f"git could not {action}: its host cannot be reached. {shown}", retry=True)
    if "does not appear to be a git repository" in said or "not found" in said.lower():
        return UnreachableRepo(f"git could not {action}: there is no such repo, or it is private. {shown}")
    return UnreachableRepo(str(error), retry=True)


@contextmanager
def locked(mirror: Path) -> Iterator[None]:
    """Hold the mirror's lock; the kernel lets go of it when the process ends."""
    mirror.parent.mkdir(parents=True, exist_ok=True)
    with mirror.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
