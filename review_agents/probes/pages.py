"""Which files of a repo are its documentation, and reading them."""

import re
from collections.abc import Iterable

from review_agents.ports import NoSuchFile, Workspace
from review_agents.probes.documents import Document, read_document
from review_agents.records import Repo

MOST_PAGES = 60
PAGE_BYTES = 400_000
README = re.compile(r"^readme(?:[-_.]\w+)?(?:\.(?:md|markdown|rst|txt|rest))?$", re.IGNORECASE)
DOCS_FOLDER = re.compile(r"^(?:docs?|documentation|userguide|guide|manual)/", re.IGNORECASE)
NOT_FOR_USERS = re.compile(
    r"(?:^|/)(?:change\w*|history|news|releas\w*|whats?[-_]?new|upgrad\w*|migrat\w*|contribut\w*|develop\w*|hacking|"
    r"code_of_conduct|security|licen[cs]e|copying|authors|credits|maintain\w*|roadmap|todo|"
    r"_templates?|_static|_themes?|"
    r"_build|archive|old|legacy|internals?|adr|rfcs?|design|proposals?|news(?:frag\w*)?|requirements\w*|blog|meetings?|"
    r"translations?|locales?|index_\w\w|readme[._-](?:zh|cn|ja|jp|ko|kr|ru|es|fr|de|pt|br|it|"
    r"tr|pl|uk|vi|ar|fa|hi|id)\w*)"
    r"(?:[-_.][^/]*)?(?:/|$)",
    re.IGNORECASE,
)


def documentation(repo: Repo, root: str = ".") -> tuple[str, ...]:
    """README files of the project first, then the pages of its docs folders."""
    prefix = "" if root == "." else f"{root}/"
    readmes = [path for path in repo.files if _folder(path) in ("", prefix.rstrip("/")) and README.match(_name(path))]
    readmes = [path for path in readmes if not NOT_FOR_USERS.search(_name(path))]
    docs = [
        path
        for path in repo.files
        if path.lower().endswith((".md", ".rst", ".markdown"))
        and (DOCS_FOLDER.match(path) or (prefix and path.startswith(prefix) and DOCS_FOLDER.match(path[len(prefix) :])))
        and not NOT_FOR_USERS.search(path)
    ]
    chosen = _without_copies(sorted(readmes, key=lambda path: (not path.startswith(prefix), path)))
    return (*chosen, *sorted(docs, key=lambda path: (path.count("/"), path)))


def _without_copies(readmes: list[str]) -> list[str]:
    """README next to README.md is mostly a copy or a link of it."""
    stems = {path.rpartition(".")[0] for path in readmes if "." in _name(path)}
    return [path for path in readmes if "." in _name(path) or path not in stems]


def read_pages(workspace: Workspace, paths: Iterable[str], programs: Iterable[str]) -> tuple[Document, ...]:
    """The pages that can be read, at most `MOST_PAGES`."""
    known = tuple(programs)
    documents: list[Document] = []
    for path in list(paths)[:MOST_PAGES]:
        try:
            text = workspace.read(path, limit_bytes=PAGE_BYTES)
        except NoSuchFile:
            continue
        documents.append(read_document(path, text, known))
    return tuple(documents)


def is_readme(path: str) -> bool:
    return bool(README.match(_name(path)))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
