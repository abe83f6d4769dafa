from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.services.errors import BadInput, BadTarget
from orchestrator.services.targets import Target, parse_ref, parse_target
from orchestrator.settings import Settings
from orchestrator.store.repos import RepoKind

ADDRESSES = {"git.example": ("8.8.8.8",), "inside.example": ("10.0.0.5",), "both.example": ("8.8.8.8", "127.0.0.1")}


def parse(text: str, *, from_cli: bool = False, **settings: Any) -> Target:
    return parse_target(
        text, settings=Settings(**settings), from_cli=from_cli, resolve=lambda host: ADDRESSES.get(host, ())
    )


@pytest.mark.parametrize(
    ("typed", "url", "name"),
    [
        ("https://git.example/team/tool", "https://git.example/team/tool", "tool"),
        ("  https://git.example/team/tool.git/  ", "https://git.example/team/tool.git", "tool"),
        ("HTTPS://Git.Example:443/Team/Tool", "https://git.example/Team/Tool", "Tool"),
        ("https://git.example:8443/t", "https://git.example:8443/t", "t"),
        ("ssh://git@git.example/t/x", "ssh://git@git.example/t/x", "x"),
        ("ssh://git@git.example:22/t/x", "ssh://git@git.example/t/x", "x"),
        ("git@git.example:t/x.git", "ssh://git@git.example/t/x.git", "x"),
        ("https://bücher.example/x", "https://xn--bcher-kva.example/x", "x"),
        ("https://[2001:4860:4860::8888]/x", "https://[2001:4860:4860::8888]/x", "x"),
        ("https://git.example/~me/a%20b", "https://git.example/~me/a%20b", "a b"),
    ],
)
def test_a_git_url_is_written_in_one_way(typed: str, url: str, name: str) -> None:
    found = parse(typed, git_schemes=("https", "ssh"))
    assert (found.url, found.kind, found.name) == (url, RepoKind.GIT, name)
    assert parse(found.url, git_schemes=("https", "ssh")) == found


@pytest.mark.parametrize(
    "target",
    [
        "",
        "   ",
        "file:///etc",
        "FILE:///etc",
        "file://git.example/x",
        "ext::sh -c touch% /tmp/pwned",
        "fd::17",
        "::x",
        "a::https://git.example/x",
        "transport::address",
        "-uexec",
        "--upload-pack=touch /tmp/pwned",
        "https://-oProxyCommand=x/y",
        "ssh://-oProxyCommand=x/y",
        "git://git.example/x",
        "http://git.example/x",
        "ftp://git.example/x",
        "https://user:secret@git.example/x",
        "https://token@git.example/x",
        "https://:secret@git.example/x",
        "https://@git.example/x",
        "ssh://git:secret@git.example/x",
        "ssh://-x@git.example/x",
        "https://git.example/x?private_token=secret",
        "https://git.example/x#frag",
        "https://git.example",
        "https://git.example/",
        "https:///x",
        "https://",
        "https://git.example:99999/x",
        "https://git.example:x/x",
        "https://[::1/x",
        "https://git.example/a\nb",
        "https://git.example/a\x00b",
        "https://git.example/a%0ab",
        "https://git.example/a%00b",
        "https://git example/x",
        "https://git.example\\@10.0.0.1/x",
        "https://git_.-example-/x",
        "https://\u2028/x",
        "https://git.example/\ud800",
        "https://" + "a" * 64 + ".example/x",
        "git@git.example:",
        "relative/folder",
        "./folder",
        "~",
        "~root",
        "C:\\repos\\x",
        "javascript:alert(1)",
        "git.example/x",
        "x" * 2001,
    ],
)
def test_what_is_no_acceptable_target_is_refused_with_what_is(target: str) -> None:
    with pytest.raises(BadTarget) as refused:
        parse(target, git_schemes=("https", "ssh"))
    assert refused.value.field == "target"
    assert "secret" not in str(refused.value) and "\x00" not in str(refused.value)
    str(refused.value).encode("utf-8")


@pytest.mark.parametrize("scheme", ["file", "ext"])
def test_file_and_ext_are_refused_even_when_the_settings_name_them(scheme: str) -> None:
    with pytest.raises(BadTarget):
        parse(f"{scheme}://git.example/x", git_schemes=(scheme,))


def test_ssh_only_where_the_operator_allows_it() -> None:
    with pytest.raises(
        BadTarget, match=r"ssh:// are not accepted here \(LAMPLIGHTER_GIT_SCHEMES=https,ssh accepts it\).*https://"
    ):
        parse("git@git.example:t/x")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "172.16.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "[::1]",
        "[fe80::1]",
        "[fd00::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:10.0.0.1]",
        "[2002:0a00:0001::1]",
        "inside.example",
        "both.example",
    ],
)
def test_hosts_inside_the_operators_network_are_refused(host: str) -> None:
    with pytest.raises(BadTarget, match="private or reserved"):
        parse(f"https://{host}/x")


def test_private_ranges_that_the_operator_allows_are_accepted() -> None:
    allowed = {"egress_allow_ranges": ("10.0.0.0/8", "::1/128")}
    assert parse("https://inside.example/x", **allowed).url == "https://inside.example/x"
    assert parse("https://[::1]/x", **allowed)
    with pytest.raises(BadTarget):
        parse("https://192.168.0.1/x", **allowed)


def test_a_host_that_cannot_be_resolved_here_is_left_to_the_probe() -> None:
    assert parse("https://only-the-proxy-knows.example/x")


# Folders ------------------------------------------------------------------------------------


def test_the_command_line_takes_any_folder_and_the_web_only_those_below_a_root(tmp_path: Path) -> None:
    inside, outside = tmp_path / "roots" / "x", tmp_path / "other"
    inside.mkdir(parents=True)
    outside.mkdir()
    roots = {"allowed_roots": (str(tmp_path / "roots"),)}
    assert parse(str(inside), **roots) == Target(str(inside), RepoKind.PATH, "x")
    assert parse(str(outside), from_cli=True).url == str(outside)
    with pytest.raises(BadTarget, match="not below"):
        parse(str(outside), **roots)
    with pytest.raises(BadTarget, match="LAMPLIGHTER_ALLOWED_ROOTS"):
        parse(str(inside))


def test_no_way_round_leads_out_of_the_roots(tmp_path: Path) -> None:
    roots = {"allowed_roots": (str(tmp_path / "roots"),)}
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots-too").mkdir()
    (tmp_path / "roots" / "link").symlink_to(tmp_path)
    for way in ("/..", "/../roots-too", "-too", "/link", "/link/roots-too", "/../../../../etc"):
        with pytest.raises(BadTarget, match="not below"):
            parse(f"{tmp_path}/roots{way}", **roots)


def test_outside_the_roots_one_cannot_tell_what_exists(tmp_path: Path) -> None:
    roots = {"allowed_roots": (str(tmp_path / "roots"),)}
    messages = []
    for name in ("there", "not-there"):
        (tmp_path / "there").mkdir(exist_ok=True)
        with pytest.raises(BadTarget) as refused:
            parse(str(tmp_path / name), **roots)
        messages.append(str(refused.value).replace("not-there", "there"))
    assert messages[0] == messages[1]


def test_a_folder_that_is_not_there_or_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("missing", "file", "loop", "x" * 1000):
        with pytest.raises(BadTarget, match="is a file" if name == "file" else "no folder|cannot be followed"):
            parse(str(tmp_path / name), from_cli=True)


def test_a_repos_git_folder_stands_for_the_repo_inside_the_roots_only(tmp_path: Path) -> None:
    (tmp_path / "tool" / ".git").mkdir(parents=True)
    for name in ("tool", "tool/.git"):
        assert parse(str(tmp_path / name), from_cli=True) == Target(str(tmp_path / "tool"), RepoKind.PATH, "tool")
    with pytest.raises(BadTarget, match="not below"):
        parse(str(tmp_path / "tool" / ".git"), allowed_roots=(str(tmp_path / "tool" / ".git"),))


def test_a_folder_with_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    for name in (b"a\xff", b"a\nb"):
        folder = tmp_path / name.decode("utf-8", "surrogateescape")
        folder.mkdir()
        with pytest.raises(BadTarget):
            parse(str(folder), from_cli=True)


def test_the_command_line_takes_relative_folders_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse("x", from_cli=True).url == parse("./x/", from_cli=True).url == parse("~/x", from_cli=True).url
    with pytest.raises(BadTarget):
        parse("~no-such-user-here/x", from_cli=True)


@given(st.text(max_size=80), st.booleans())
def test_any_text_is_a_target_or_refused_in_words(text: str, from_cli: bool) -> None:
    try:
        found = parse(text, from_cli=from_cli, git_schemes=("https", "ssh"))
    except BadTarget as refused:
        str(refused).encode("utf-8")
    else:
        assert found.url.startswith(("https://", "ssh://", "/")) and found.name


@given(st.sampled_from(["https://", "ssh://", "https://git.example/", "git@git.example:"]), st.text(max_size=60))
def test_any_url_is_normal_or_refused(start: str, rest: str) -> None:
    try:
        found = parse(start + rest, git_schemes=("https", "ssh"))
    except BadTarget:
        return
    assert parse(found.url, git_schemes=("https", "ssh")) == found
    assert found.url.isascii() and found.url.isprintable() and " " not in found.url


# Refs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ref", ["", "main", "feature/x", "v1.0", "0123abc", "a" * 250, "Ünï", "a@b", "refs/heads/x"])
def test_refs_that_git_allows_are_accepted(ref: str) -> None:
    assert parse_ref(f" {ref}\n") == ref


@pytest.mark.parametrize(
    "ref",
    ["-x", "--upload-pack=x", "a b", "a..b", "a~1", "a^", "a:b", "a?", "a*", "[a", "a\\b", "@{1}", "@", "a.lock",
     "a.lock/b", "/a", "a/", "a//b", ".a", "a/.b", "a.", "a\x00b", "a\nb", "a\x7f", "\ud800", "a" * 251],
)  # fmt: skip
def test_refs_that_git_forbids_are_refused(ref: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_ref(ref)
    assert refused.value.field == "ref"
    assert not isinstance(refused.value, BadTarget)
    str(refused.value).encode("utf-8")
