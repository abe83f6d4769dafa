"""Run Python examples of a document one after another, as a reader would at one prompt.

Arguments: job file, result file. The job is JSON: {"items": [{"id", "kind", "text", "file", "line"}], "own": [import
packages of the repo], "seconds": limit of each item}, kind being "block" or "session"; or {"modules": [...], ...} for
docstrings. The result has one JSON object a line, written as things happen: {"start": id} before an item, then what
came of it. So whatever ends this process, what was found before is kept.
"""

import ast
import asyncio
import builtins
import contextlib
import doctest
import importlib
import inspect
import io
import json
import linecache
import os
import signal
import sys
import traceback
import types

LONGEST = 20_000  # characters kept of one output


class TooLong(BaseException):
    """An item's time is up. No Exception, so that the example does not swallow it."""


def main(job_file, result_file):
    with open(job_file, encoding="utf-8") as file:
        job = json.load(file)
    out = open(result_file, "w", encoding="utf-8")  # noqa: SIM115 - written line by line until the end

    def tell(record):
        out.write(json.dumps(record) + "\n")
        out.flush()

    sys.path[:] = [place for place in sys.path[1:] if place != ""] + [os.getcwd()]
    sys.argv = [""]
    runner = Runner(job.get("own", []), job.get("seconds", 20), tell)
    if "modules" in job:
        runner.docstrings(job["modules"], job.get("flags", []))
    else:
        runner.items(job["items"])
    tell({"end": True})
    out.close()
    os._exit(0)  # threads that an example left behind must not keep us


class Runner:
    def __init__(self, own, seconds, tell):
        self.own = tuple(own)
        self.seconds = seconds
        self.tell = tell
        self.stream = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="replace", write_through=True)
        self.errors = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="replace", write_through=True)
        self.module = None

    # What a document holds ---------------------------------------------------------------

    def items(self, items):
        self.fresh_module()
        for item in items:
            self.tell({"start": item["id"]})
            with self.surroundings():
                record = self.session(item) if item["kind"] == "session" else self.block(item)
            self.tell(dict(record, id=item["id"]))

    def fresh_module(self):
        self.module = types.ModuleType("__main__")
        self.module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self.module

    @contextlib.contextmanager
    def surroundings(self):
        kept = sys.stdout, sys.stderr, sys.stdin, sys.displayhook
        sys.stdout, sys.stderr = self.stream, self.errors
        sys.stdin = io.StringIO("")
        signal.signal(signal.SIGALRM, self.time_is_up)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            yield
        except TooLong:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.stdout, sys.stderr, sys.stdin, sys.displayhook = kept

    def time_is_up(self, *_):
        raise TooLong

    def said(self, stream, start):
        stream.flush()
        text = stream.buffer.getvalue()[start:].decode("utf-8", "replace")
        return text[:LONGEST]

    def position(self, stream):
        stream.flush()
        return len(stream.buffer.getvalue())

    def block(self, item):
        """Each statement on its own, so that every value is seen."""
        name = f"<{item['file']}:{item['line']}>"
        text = item["text"]
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        record = {"statements": [], "error": None}
        try:
            tree = ast.parse(text, name)
        except (SyntaxError, ValueError) as problem:
            record["error"] = self.describe(problem, None, name)
            record["error"]["syntax"] = True
            return record
        future = 0
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                for alias in node.names:
                    future |= getattr(__import__("__future__"), alias.name).compiler_flag
            start, errors = self.position(self.stream), self.position(self.errors)
            entry = {"line": node.lineno, "end": node.end_lineno or node.lineno}
            record["statements"].append(entry)
            try:
                if isinstance(node, ast.Expr):
                    value = self.evaluate(compile(ast.Expression(node.value), name, "eval", self.flags(future)))
                    if value is not None:
                        entry["value"] = self.shown(value)
                        entry["type"] = type(value).__name__
                        if isinstance(value, str):
                            entry["string"] = value[:LONGEST]
                else:
                    self.evaluate(compile(ast.Module([node], []), name, "exec", self.flags(future)))
            except TooLong:
                entry["out"] = self.said(self.stream, start)
                record["error"] = {"type": "TooLong", "message": f"it did not end within {self.seconds:g} s"}
                return record
            except BaseException as problem:
                entry["out"] = self.said(self.stream, start)
                record["error"] = self.describe(problem, node, name)
                return record
            entry["out"] = self.said(self.stream, start)
            entry["err"] = self.said(self.errors, errors)
        return record

    def flags(self, future):
        return future | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

    def evaluate(self, code):
        value = eval(code, self.module.__dict__)
        if code.co_flags & inspect.CO_COROUTINE:
            return asyncio.get_event_loop_policy().new_event_loop().run_until_complete(value)
        return value

    def shown(self, value):
        try:
            return repr(value)[:LONGEST]
        except Exception as problem:
            return f"<repr raised {type(problem).__name__}>"

    def session(self, item):
        try:
            examples = doctest.DocTestParser().get_examples(item["text"])
        except ValueError as problem:
            return {"examples": [], "error": {"type": "ValueError", "message": str(problem), "syntax": True}}
        return {
            "examples": self.run_examples(examples, self.module.__dict__, item["file"], item["line"]),
            "error": None,
        }

    def run_examples(self, examples, names, file, line):
        records = []
        future = 0
        for number, example in enumerate(examples):
            record = {
                "line": example.lineno + line,
                "source": example.source,
                "want": example.want,
                "want_error": example.exc_msg,
                "options": [doctest_name(flag) for flag, on in example.options.items() if on],
                "got": "",
                "error": None,
            }
            records.append(record)
            if example.options.get(doctest.SKIP):
                record["skipped"] = True
                continue
            start = self.position(self.stream)
            name = f"<{file}:{record['line']}[{number}]>"
            linecache.cache[name] = (len(example.source), None, example.source.splitlines(True), name)
            sys.displayhook = sys.__displayhook__
            tree = None
            try:
                tree = ast.parse(example.source, name)
                for node in tree.body:
                    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                        for alias in node.names:
                            future |= getattr(__import__("__future__"), alias.name).compiler_flag
                code = compile(example.source, name, "single", self.flags(future), True)
                if code.co_flags & inspect.CO_COROUTINE:
                    asyncio.get_event_loop_policy().new_event_loop().run_until_complete(eval(code, names))
                else:
                    exec(code, names)
            except TooLong:
                record["error"] = {"type": "TooLong", "message": f"it did not end within {self.seconds:g} s"}
                return records
            except BaseException as problem:
                node = tree.body[-1] if tree is not None and tree.body else None
                record["error"] = self.describe(problem, node, name, names)
                record["error"]["syntax"] = tree is None
            record["got"] = self.said(self.stream, start)
            if example.want and not record["got"] and not record["error"] and len(tree.body) == 1:
                record["assigned"] = self.assigned(tree.body[0], names)
        return records

    def assigned(self, node, names):
        """The value that an assignment gave to a name: documents show it as if the prompt did."""
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            return self.shown(names.get(node.targets[0].id))
        return None

    # What went wrong ---------------------------------------------------------------------

    def describe(self, problem, node, name, names=None):
        """An exception, and whose it is."""
        names = self.module.__dict__ if names is None and self.module else names
        frames = []
        for frame, line in traceback.walk_tb(problem.__traceback__):
            module = frame.f_globals.get("__name__", "")
            file = frame.f_code.co_filename
            if file == __file__:
                continue
            function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            frames.append({"module": module, "file": file, "line": line, "function": function, "example": file == name})
        cause = problem
        described = {
            "type": type(problem).__name__,
            "module": type(problem).__module__,
            "bases": [base.__name__ for base in type(problem).__mro__],
            "message": text_of(problem),
            "frames": frames[-40:],
            "own_frames": sum(self.is_own(frame["module"]) and not frame["example"] for frame in frames),
            "causes": [],
        }
        while (cause := cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)) is not None:
            described["causes"].append(type(cause).__name__ + ": " + text_of(cause))
            if len(described["causes"]) > 5:
                break
        if isinstance(problem, ImportError):
            described["import"] = {"module": problem.name or "", "name": getattr(problem, "name_from", None) or ""}
        if isinstance(problem, AttributeError):
            described["attribute"] = self.attribute(problem)
        if isinstance(problem, TypeError) and frames and frames[-1]["example"] and node is not None:
            described["calls"] = self.calls(node, names or {})
        return described

    def is_own(self, module):
        return any(module == own or module.startswith(own + ".") for own in self.own)

    def attribute(self, problem):
        missing = object()
        thing = getattr(problem, "obj", missing)
        if thing is missing or thing is None:
            return {"name": getattr(problem, "name", "") or "", "of": "", "module": "", "own": False}
        if isinstance(thing, types.ModuleType):
            of, module = thing.__name__, thing.__name__
        else:
            kind = thing if isinstance(thing, type) else type(thing)
            of, module = kind.__qualname__, kind.__module__
        return {
            "name": getattr(problem, "name", "") or "",
            "of": of,
            "module": module,
            "own": self.is_own(module),
            "is_module": isinstance(thing, types.ModuleType),
            "has": [name for name in dir(thing) if not name.startswith("_")][:200],
        }

    def calls(self, node, names):
        """The calls of plain names in the statement, and whose functions they are."""
        found = []
        for call in ast.walk(node):
            if not isinstance(call, ast.Call):
                continue
            path = dotted(call.func)
            if path is None:
                continue
            target = names.get(path[0], getattr(builtins, path[0], None))
            for part in path[1:]:
                target = getattr(target, part, None)
            if target is None:
                continue
            module = getattr(target, "__module__", "") or ""
            try:
                signature = str(inspect.signature(target))[:300]
            except (TypeError, ValueError):
                signature = ""
            found.append(
                {
                    "text": ".".join(path),
                    "name": getattr(target, "__qualname__", getattr(target, "__name__", "")),
                    "module": module,
                    "own": self.is_own(module),
                    "signature": signature,
                    "ellipsis": any(isinstance(arg, ast.Constant) and arg.value is ... for arg in call.args),
                }
            )
        return found

    # Docstrings --------------------------------------------------------------------------

    def docstrings(self, modules, flags):
        finder = doctest.DocTestFinder()
        for name in modules:
            self.tell({"start": name})
            record = {"id": name, "tests": [], "error": None}
            with self.surroundings():
                self.module = types.ModuleType("__main__")
                try:
                    module = importlib.import_module(name)
                    tests = sorted(finder.find(module), key=lambda test: (test.lineno or 0, test.name))
                except BaseException as problem:
                    record["error"] = self.describe(problem, None, "")
                    tests = []
                for test in tests:
                    if not test.examples:
                        continue
                    entry = {"name": test.name, "file": test.filename, "line": (test.lineno or 0) + 1}
                    entry["examples"] = self.run_examples(test.examples, test.globs, test.name, entry["line"])
                    record["tests"].append(entry)
            self.tell(record)


def dotted(node):
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        path = dotted(node.value)
        return None if path is None else [*path, node.attr]
    return None


def text_of(problem):
    try:
        return str(problem)[:2000]
    except Exception:
        return "<str raised>"


def doctest_name(flag):
    return next((name for name, value in doctest.OPTIONFLAGS_BY_NAME.items() if value == flag), str(flag))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
