"""Places in the repo's code for what happens at the command line."""

import re

from review_agents.ports import Workspace
from review_agents.probes.prepare import Prepared
from review_agents.probes.source_tree import SourceTree
from review_agents.probes.tracebacks import Raised
from review_agents.records import Place, Repo


class CodePlaces:
    def __init__(self, workspace: Workspace, repo: Repo, prepared: Prepared):
        self.tree = SourceTree(workspace, repo, prepared)
        self.prepared = prepared

    def line(self, file: str, line: int) -> str:
        """That line of a tracked file, without the white space around it."""
        lines = self.tree.text(file).splitlines()
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def of_traceback(self, raised: Raised) -> Place | None:
        """The deepest line of the traceback that belongs to the repo."""
        for frame in reversed(raised.frames):
            if path := self.tree.tracked_path(frame.file):
                return self.tree.place(path, frame.line)
        return None

    def of_command(self, path: tuple[str, ...]) -> Place | None:
        """The function that does a subcommand's work, or that the command enters by."""
        target = self.prepared.console_scripts.get(path[0], "") if path else ""
        module, _, function = target.partition(":")
        file = self._file_of(module)
        if not file:
            return None
        text = self.tree.text(file)
        for word in (*reversed(path[1:]), function.partition(".")[0]):
            name = re.escape(word.replace("-", "_"))
            for pattern in (rf"^[ \t]*(?:async )?def {name}\(", rf"^[ \t]*(?:async )?def \w*{name}\w*\("):
                if found := re.search(pattern, text, re.MULTILINE):
                    line = text.count("\n", 0, found.start()) + 1 + found[0].count("\n")
                    return self.tree.place(file, line)
        return self.tree.place(file)

    def _file_of(self, module: str) -> str:
        for one in self.prepared.distributions:
            for package in one.import_packages:
                if module == package or module.startswith(f"{package}."):
                    root = self.tree.path_root(one, package)
                    stem = "/".join(part for part in [root, *module.split(".")] if part not in (".", ""))
                    for path in (f"{stem}.py", f"{stem}/__init__.py", f"{stem}/__main__.py"):
                        if path in self.tree.tracked:
                            return path
        return ""
