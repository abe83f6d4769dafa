"""Mirrors of local and remote repos, most of them hostile."""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from orchestrator.clients import git_checkout
from orchestrator.clients.git import Git
from orchestrator.clients.git_command import TooLarge
from orchestrator.clients.git_target import GitRules
from review_agents.ports import EmptyRepo, RepoProblem, Stopped, UnknownRef, UnreachableRepo

AUTHOR = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05+00:00",
}


def git(folder: Path, *arguments: str | bytes, given: bytes = b"") -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={**os.environ, **AUTHOR},
        check=True,
        capture_output=True,
        input=given,
    )
    return done.stdout.decode().strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Three commits on main, the first one tagged v1."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for number in (1, 2, 3):
        (folder / "README.md").write_text(f"number {number}\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", f"commit {number}")
        if number == 1:
            git(folder, "tag", "-a", "v1", "-m", "one")
    return folder


@pytest.fixture
def mirrors(tmp_path: Path) -> Git:
    return Git(tmp_path / "mirrors", GitRules())


def commit_all(folder: Path) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "more")
    return git(folder, "rev-parse", "HEAD")


def test_the_default_branch_is_found_without_a_fetch(repo: Path, mirrors: Git) -> None:
    head = mirrors.probe(str(repo))
    assert (head.commit, head.ref, head.default_ref) == (git(repo, "rev-parse", "HEAD"), "main", "main")


def test_an_annotated_tag_names_its_commit(repo: Path, mirrors: Git) -> None:
    assert mirrors.probe(str(repo), "v1").commit == git(repo, "rev-parse", "v1^{commit}")
    assert mirrors.fetch(str(repo), "v1").commit == git(repo, "rev-parse", "v1^{commit}")


def test_a_commit_of_a_local_repo_may_be_abbreviated(repo: Path, mirrors: Git) -> None:
    whole = git(repo, "rev-parse", "HEAD~1")
    assert mirrors.probe(str(repo), whole[:8]).commit == whole
    assert mirrors.fetch(str(repo), whole[:8]).commit == whole


def test_files_dates_texts_and_changes_are_read_without_a_checkout(repo: Path, mirrors: Git) -> None:
    (repo / "src").mkdir()
    (repo / "src" / "b.py").write_bytes(b"x = '\xff'\n")
    commit_all(repo)
    checkout = mirrors.fetch(str(repo))
    assert checkout.files() == ("README.md", "src/b.py")
    assert checkout.show("README.md") == "number 3\n"
    assert checkout.show("src/b.py") == "x = '�'\n"
    assert checkout.content("src/b.py") == b"x = '\xff'\n"
    assert checkout.blobs() == {path: git(repo, "rev-parse", f"HEAD:{path}") for path in ("README.md", "src/b.py")}
    assert checkout.show("nothing") is None and checkout.content("nothing") is None
    assert checkout.show("src") is None
    assert checkout.date() == "2026-01-02T03:04:05+00:00"
    assert checkout.changed(git(repo, "rev-parse", "HEAD~1")) == ("src/b.py",)
    assert mirrors.at(str(repo), checkout.commit).files() == checkout.files()


def test_the_commits_since_another_go_along_first_parents_oldest_first(repo: Path, mirrors: Git) -> None:
    one, two, three = git(repo, "rev-list", "--reverse", "HEAD").split()
    git(repo, "checkout", "-q", "-b", "side", one)
    (repo / "side.txt").write_text("beside")
    side = commit_all(repo)
    git(repo, "checkout", "-q", "main")
    git(repo, "merge", "-q", "--no-ff", "-m", "merge", "side")
    merge = git(repo, "rev-parse", "HEAD")
    checkout = mirrors.fetch(str(repo))
    assert checkout.since(one) == (two, three, merge)
    assert checkout.since(merge) == checkout.since(side) == ()
    assert (checkout.parent(), checkout.subject()) == (three, "merge")
    with pytest.raises(UnknownRef):
        checkout.since("main")


def test_the_last_tag_lies_before_the_commit_itself(repo: Path, mirrors: Git) -> None:
    first = git(repo, "rev-parse", "v1^{commit}")
    git(repo, "tag", "v2", "HEAD")
    assert mirrors.fetch(str(repo)).last_tag() == first
    root = mirrors.fetch(str(repo), "v1")
    assert (root.last_tag(), root.parent()) == ("", "")


def test_lock_files_of_a_git_that_was_killed_are_in_nobodys_way(repo: Path, mirrors: Git, tmp_path: Path) -> None:
    mirrors.fetch(str(repo))
    (mirror,) = (tmp_path / "mirrors").glob("*.git")
    left = [mirror / name for name in ("packed-refs.lock", "refs/lamplighter/fetched.lock", "HEAD.lock", "gc.pid")]
    for path in left:
        path.write_text("")
    commit = git(repo, "rev-parse", "v1^{commit}")
    assert mirrors.fetch(str(repo), "v1").commit == commit
    assert not any(path.exists() for path in left)


def test_folders_of_killed_processes_are_swept_and_mirrors_stay(repo: Path, mirrors: Git, tmp_path: Path) -> None:
    checkout = mirrors.fetch(str(repo))
    (tmp_path / "mirrors" / "view-left" / "objects").mkdir(parents=True)
    assert mirrors.sweep() == ("view-left",)
    assert mirrors.sweep() == ()
    assert mirrors.at(str(repo), checkout.commit).files() == checkout.files()


def test_a_fetch_onto_a_full_disk_is_tried_again_later(
    repo: Path, mirrors: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.clients.git.FREE_BYTES", 1 << 60)
    with pytest.raises(UnreachableRepo, match="is full") as caught:
        mirrors.fetch(str(repo))
    assert caught.value.retry
    monkeypatch.undo()
    assert mirrors.fetch(str(repo)).files()


def test_a_commit_that_was_never_fetched_is_missing(repo: Path, mirrors: Git) -> None:
    with pytest.raises(UnknownRef, match="lacks commit"):
        mirrors.at(str(repo), git(repo, "rev-parse", "HEAD"))


def test_a_tag_that_was_moved_is_moved_in_the_mirror_too(repo: Path, mirrors: Git, tmp_path: Path) -> None:
    mirrors.fetch(str(repo))
    git(repo, "tag", "--force", "v1", "HEAD")
    with mirrors.fetch(str(repo)).bundle() as bundle:
        git(tmp_path, "clone", "--quiet", str(bundle), "clone")
    assert git(tmp_path / "clone", "describe", "--tags") == "v1"


def test_the_bundle_carries_history_and_tags(repo: Path, mirrors: Git, tmp_path: Path) -> None:
    checkout = mirrors.fetch(str(repo))
    with checkout.bundle() as bundle:
        git(tmp_path, "clone", "--quiet", str(bundle), "clone")
    assert git(tmp_path / "clone", "describe", "--tags").startswith("v1-2-g")
    assert git(tmp_path / "clone", "rev-parse", "HEAD") == checkout.commit
    assert not bundle.exists()


def test_a_long_history_is_cut_behind_the_nearest_tag(
    repo: Path, mirrors: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_checkout, "FULL_HISTORY_BYTES", 0)
    monkeypatch.setattr(git_checkout, "SHALLOW_COMMITS", 1)
    for number in range(5):
        (repo / "README.md").write_text(f"later {number}\n")
        commit_all(repo)
    git(repo, "tag", "v2", "HEAD~1")
    git(repo, "checkout", "--quiet", "-b", "side", "HEAD~2")
    (repo / "side").write_text("s")
    commit_all(repo)
    git(repo, "checkout", "--quiet", "main")
    git(repo, "merge", "--quiet", "--no-edit", "side")
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "--quiet")
    checkout = mirrors.fetch(str(repo))
    with checkout.bundle() as bundle:
        (clone / ".git" / "shallow").write_text(Path(f"{bundle}.shallow").read_text())
        git(clone, "fetch", "--quiet", str(bundle), "+refs/*:refs/*")
    assert git(clone, "describe", "--tags", checkout.commit) == git(repo, "describe", "--tags", "HEAD")
    assert int(git(clone, "rev-list", "--count", checkout.commit)) < int(git(repo, "rev-list", "--count", "HEAD"))
    git(clone, "fsck", "--no-dangling")


def test_uncommitted_files_are_named_and_the_folders_configuration_is_not_run(
    repo: Path, mirrors: Git, tmp_path: Path
) -> None:
    trap = tmp_path / "ran"
    git(repo, "config", "core.fsmonitor", f"touch {trap}; false")
    git(repo, "config", "filter.trap.clean", f"touch {trap}; cat")
    (repo / ".gitattributes").write_text("* filter=trap\n")
    git(repo, "-c", "filter.trap.clean=cat", "-c", "core.fsmonitor=false", "add", ".")
    git(repo, "-c", "core.fsmonitor=false", "commit", "--quiet", "--message", "attributes")
    trap.unlink(missing_ok=True)
    commit = mirrors.fetch(str(repo)).commit
    assert mirrors.uncommitted(str(repo), commit) == ()
    (repo / "README.md").write_text("changed\n")
    (repo / "new\nfile").write_text("")
    assert mirrors.uncommitted(str(repo), commit) == ("README.md", "new\nfile")
    assert not trap.exists()


def test_a_linked_worktree_is_accepted(repo: Path, mirrors: Git, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "--quiet", "-b", "other", str(tmp_path / "tree"))
    (tmp_path / "tree" / "more").write_text("x")
    commit = commit_all(tmp_path / "tree")
    assert mirrors.fetch(str(tmp_path / "tree")).commit == commit
    (tmp_path / "tree" / "more").write_text("y")
    assert mirrors.uncommitted(str(tmp_path / "tree"), commit) == ("more",)


# What must be refused -----------------------------------------------------------------------

BAD_TARGETS = [
    "",
    "-x",
    "--upload-pack=touch /tmp/x",
    "ext::sh -c true",
    "ext::sh",
    "file:///etc",
    "fd::17",
    "http://example.org/x",
    "ssh://git@example.org/x",
    "git@example.org:x/y",
    "git://example.org/x",
    "https://",
    "https:///x",
    "https://-oProxyCommand=x/y",
    "https://user:secret@example.org/x",
    "https://token@example.org/x",
    "https://example.org:70000/x",
    "https://example.org/x y",
    "https://example.org/x\ny",
    "https://example.org/\x1b[31m",
    "relative/folder",
    "/nowhere/at/all",
]


@pytest.mark.parametrize("target", BAD_TARGETS, ids=repr)
def test_a_bad_target_is_refused_in_plain_words(mirrors: Git, target: str) -> None:
    with pytest.raises(UnreachableRepo) as caught:
        mirrors.probe(target)
    assert "secret" not in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize(
    "ref", ["-x", "--all", "a..b", "a b", "a\nb", "x:y", "+x", "x*", "@{1}", "x.lock", "/x", "x" * 300]
)
def test_a_ref_that_is_none_is_refused(repo: Path, mirrors: Git, ref: str) -> None:
    with pytest.raises(UnknownRef):
        mirrors.fetch(str(repo), ref)


@pytest.mark.parametrize("ref", ["nope", "refs/heads/nope", "deadbeef", "0" * 40])
def test_a_ref_that_is_not_there_is_named(repo: Path, mirrors: Git, ref: str) -> None:
    with pytest.raises(UnknownRef, match=ref):
        mirrors.fetch(str(repo), ref)


def test_an_empty_repo_is_refused(tmp_path: Path, mirrors: Git) -> None:
    git(tmp_path, "init", "--quiet", "empty")
    with pytest.raises(EmptyRepo):
        mirrors.probe(str(tmp_path / "empty"))


def test_a_repo_over_the_size_cap_is_cut_off(repo: Path, tmp_path: Path) -> None:
    (repo / "noise").write_bytes(os.urandom(3 << 20))
    commit_all(repo)
    small = Git(tmp_path / "mirrors", GitRules(max_repo_bytes=1 << 20))
    with pytest.raises(TooLarge, match="larger than 1 MiB"):
        small.fetch(str(repo))
    assert not list((tmp_path / "mirrors").glob("*.git/objects/pack/*"))


def test_a_file_that_packs_small_but_is_huge_is_refused(repo: Path, tmp_path: Path) -> None:
    (repo / "zeros").write_bytes(bytes(9 << 20))
    commit_all(repo)
    small = Git(tmp_path / "mirrors", GitRules(max_repo_bytes=4 << 20))
    with pytest.raises(TooLarge, match="zeros with 9 MiB"):
        small.fetch(str(repo))


def test_a_fetch_that_is_no_longer_wanted_ends(repo: Path, mirrors: Git) -> None:
    slow = repo / "slow"
    slow.write_bytes(os.urandom(40 << 20))
    commit_all(repo)
    with pytest.raises(Stopped):
        mirrors.fetch(str(repo), cancelled=lambda: True)


def test_strange_names_submodules_links_and_lfs_are_only_data(repo: Path, mirrors: Git, tmp_path: Path) -> None:
    (repo / "line\nbreak").write_text("1")
    (repo / "esc\x1b[31m").write_text("2")
    with open(bytes(repo) + b"/latin-\xe9", "w") as file:
        file.write("3")
    (repo / "outside").symlink_to("/etc/passwd")
    (repo / "folder").mkdir()
    for name, place in {"up": "../../x", "inside": "../big.bin", "turning": "./../folder/../..", "itself": "."}.items():
        (repo / "folder" / name).symlink_to(place)
    (repo / ".gitattributes").write_text("*.bin filter=lfs diff=lfs\n")
    (repo / "big.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    (repo / "small.bin").write_text("no pointer, but as long as one: version https://git-lfs.github.com/spec/v1\n")
    git(repo, "add", "--all")
    blob = git(repo, "rev-parse", "HEAD")
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{blob},module")
    (repo / ".gitmodules").write_text(f'[submodule "module"]\n\tpath = module\n\turl = {tmp_path}/other\n')
    git(repo, "add", ".gitmodules")
    git(repo, "commit", "--quiet", "--message", "strange")
    checkout = mirrors.fetch(str(repo))
    names = checkout.files()
    assert {"line\nbreak", "esc\x1b[31m", "latin-\\xe9", "outside", "big.bin"} <= set(names) and "module" not in names
    assert checkout.submodules() == ("module",) and checkout.lfs_pointers() == ("big.bin",)
    assert checkout.links_outside() == ("folder/turning", "folder/up", "outside")
    assert checkout.links() == ("folder/inside", "folder/itself", "folder/turning", "folder/up", "outside")
    assert checkout.blobs().keys() == set(names) - set(checkout.links())
    assert checkout.show("outside") == "/etc/passwd"  # the link's own text, not what it points to
    assert checkout.show("big.bin") == "version https://git-lfs.github.com/spec/v1\n"
    assert checkout.show("line\nbreak") == "1"


def test_hooks_and_configured_programs_of_a_local_repo_do_not_run(repo: Path, mirrors: Git, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    for hook in ("post-upload-pack", "pre-upload-pack", "reference-transaction", "post-checkout", "fsmonitor-watchman"):
        (repo / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {trap}\n")
        (repo / ".git" / "hooks" / hook).chmod(0o755)
    git(repo, "config", "uploadpack.packObjectsHook", f"touch {trap};")
    git(repo, "config", "core.alternateRefsCommand", f"touch {trap};")
    mirrors.fetch(str(repo))
    assert not trap.exists()


def test_a_local_repo_cannot_make_us_fetch_from_its_promisor(repo: Path, mirrors: Git, tmp_path: Path) -> None:
    """A partial clone fetches what it lacks with a program that its configuration names."""
    trap = tmp_path / "ran"
    blob = git(repo, "rev-parse", "HEAD:README.md")
    git(repo, "config", "core.repositoryFormatVersion", "1")
    git(repo, "config", "extensions.partialClone", "origin")
    git(repo, "config", "remote.origin.url", str(repo))
    git(repo, "config", "remote.origin.promisor", "true")
    git(repo, "config", "remote.origin.uploadpack", f"touch {trap}; git-upload-pack")
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(RepoProblem):
        mirrors.fetch(str(repo))
    assert not trap.exists()


def point_dot_git_elsewhere(victim: Path, folder: Path) -> None:
    (folder / ".git").symlink_to(victim / ".git")


def name_a_foreign_git_folder(victim: Path, folder: Path) -> None:
    (folder / ".git").write_text(f"gitdir: {victim}/.git\n")


def claim_to_be_a_worktree(victim: Path, folder: Path) -> None:
    git(victim, "worktree", "add", "--quiet", "-b", "real", str(victim.parent / "real"))
    (folder / ".git").write_text(f"gitdir: {victim}/.git/worktrees/real\n")


def borrow_objects(victim: Path, folder: Path) -> None:
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / ".git" / "objects" / "info" / "alternates").write_text(f"{victim}/.git/objects\n")
    (folder / ".git" / "refs" / "heads" / "main").write_text(git(victim, "rev-parse", "HEAD") + "\n")


def link_objects(victim: Path, folder: Path) -> None:
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / ".git" / "objects" / "pack").rmdir()
    git(victim, "repack", "-adq")
    (folder / ".git" / "objects" / "pack").symlink_to(victim / ".git" / "objects" / "pack")
    (folder / ".git" / "refs" / "heads" / "main").write_text(git(victim, "rev-parse", "HEAD") + "\n")


def name_a_common_folder(victim: Path, folder: Path) -> None:
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / ".git" / "commondir").write_text(f"{victim}/.git\n")


@pytest.mark.parametrize(
    "trick",
    [
        point_dot_git_elsewhere,
        name_a_foreign_git_folder,
        claim_to_be_a_worktree,
        borrow_objects,
        link_objects,
        name_a_common_folder,
    ],
    ids=lambda trick: trick.__name__,
)
def test_a_folder_cannot_hand_out_another_repo(
    repo: Path, mirrors: Git, tmp_path: Path, trick: Callable[[Path, Path], None]
) -> None:
    folder = tmp_path / "hostile"
    folder.mkdir()
    trick(repo, folder)
    with pytest.raises(UnreachableRepo, match="not accepted"):
        mirrors.fetch(str(folder))


def test_objects_may_be_borrowed_below_an_allowed_root(repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--shared", str(repo), "shared")
    allowed = Git(tmp_path / "mirrors", GitRules(roots=(tmp_path,)))
    assert allowed.fetch(str(tmp_path / "shared")).commit == git(repo, "rev-parse", "HEAD")


# Over HTTP ----------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def served(repo: Path, tmp_path: Path) -> Iterator[str]:
    """The repo over plain, "dumb" HTTP on 127.0.0.1."""
    site = tmp_path / "site"
    git(tmp_path, "clone", "--quiet", "--bare", str(repo), str(site / "repo.git"))
    git(site / "repo.git", "update-server-info")
    yield from listening("127.0.0.1", lambda *given: Quiet(*given, directory=str(site)))


def listening(address: str, handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer((address, 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{address}:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_repo_is_fetched_over_http_from_an_allowed_range(served: str, repo: Path, tmp_path: Path) -> None:
    allowed = Git(tmp_path / "mirrors", GitRules(schemes=("http",), allow_ranges=("127.0.0.1/32",)))
    assert allowed.fetch(f"{served}/repo.git").commit == git(repo, "rev-parse", "HEAD")


def test_a_private_address_is_refused(served: str, tmp_path: Path) -> None:
    strict = Git(tmp_path / "mirrors", GitRules(schemes=("http",)))
    with pytest.raises(UnreachableRepo, match=r"127\.0\.0\.1, a private address"):
        strict.fetch(f"{served}/repo.git")


def test_a_redirect_to_a_private_host_is_refused(served: str, tmp_path: Path) -> None:
    class Elsewhere(Quiet):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", served + self.path)
            self.end_headers()

    for front in listening("127.0.0.2", Elsewhere):
        rules = GitRules(schemes=("http",), allow_ranges=("127.0.0.2/32",))
        with pytest.raises(UnreachableRepo, match=r"127\.0\.0\.1, a private address"):
            Git(tmp_path / "mirrors", rules).fetch(f"{front}/repo.git")


def test_a_server_that_asks_for_a_login_is_named_private(tmp_path: Path) -> None:
    class Private(Quiet):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()

    for front in listening("127.0.0.1", Private):
        rules = GitRules(schemes=("http",), allow_ranges=("127.0.0.0/8",))
        with pytest.raises(UnreachableRepo, match="asks for a login"):
            Git(tmp_path / "mirrors", rules).probe(f"{front}/repo.git")


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    class Silent(Quiet):
        def do_GET(self) -> None:
            threading.Event().wait(3)

    for front in listening("127.0.0.1", Silent):
        rules = GitRules(schemes=("http",), allow_ranges=("127.0.0.0/8",), probe_timeout_s=1)
        with pytest.raises(RepoProblem, match="within 1 s"):
            Git(tmp_path / "mirrors", rules).probe(f"{front}/repo.git")


def test_an_unknown_host_may_be_tried_again(mirrors: Git) -> None:
    with pytest.raises(UnreachableRepo) as caught:
        mirrors.probe("https://no-such-host.invalid/x")
    assert caught.value.retry
    assert 'no machine is known by the name "no-such-host.invalid"' in str(caught.value)
    assert "SOCKS" not in str(caught.value)  # how git is led out is nothing that its user knows of


def test_a_port_on_which_nothing_listens_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    rules = GitRules(schemes=("http",), allow_ranges=("127.0.0.0/8",))
    with pytest.raises(UnreachableRepo, match=f'"127.0.0.1" cannot be reached on port {port}: Connection refused'):
        Git(tmp_path / "mirrors", rules).probe(f"http://127.0.0.1:{port}/x")
