"""What an exception in a Python example says: a fault of the page or the package, or something that is not here."""

import re
from typing import Any

from review_agents.probes.documents import Block
from review_agents.probes.names import Names
from review_agents.probes.shell import Package

ERROR_MEANT = re.compile(
    r"\b(rais\w+|error\w*|exceptions?|fail\w*|invalid|wrong|bad|illegal|not allowed|forbidden|"
    r"doesn'?t work|does not work|won'?t|"
    r"can'?t|cannot|not supported|unsupported|deprecated|removed|no longer|don'?t|do not|"
    r"avoid|crash\w*|oops|broken|instead of|"
    r"traceback|previously|used to|before version|old\b)",
    re.IGNORECASE,
)
ENVIRONMENTAL = {
    "FileNotFoundError", "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "TimeoutError",
    "gaierror", "URLError", "HTTPError", "SSLError", "ProxyError", "ConnectTimeout", "ReadTimeout", "MaxRetryError",
    "NewConnectionError", "ConnectError", "PermissionError", "KeyboardInterrupt", "EOFError", "TclError",
    "ImproperlyConfigured", "NoCredentialsError", "SystemExit", "UnsupportedOperation", "NotADirectoryError",
    "IsADirectoryError", "FileExistsError", "TooLong", "MemoryError", "OSError", "BlockingIOError",
    "BrokenPipeError", "ClientConnectorError", "OperationalError", "NoSuchModuleError", "NoSuchFile", "error",
    "herror", "ChildProcessError", "ProcessLookupError", "LocaleError", "AppRegistryNotReady", "NoBackendError",
    "UnicodeEncodeError", "UnknownTimeZoneError", "ZoneInfoNotFoundError",
}  # fmt: skip


def error_kind(error: dict[str, Any], code: str, names: Names) -> tuple[str, str, str]:
    """fault, raises (a fault only where output is shown), needs, or unsure; a reason; the symbol at fault."""
    kind, message, frames = error["type"], error["message"], error.get("frames", [])
    in_example = bool(frames) and frames[-1]["example"]
    if error.get("syntax"):
        if "Missing parentheses in call to 'print'" in message and names.are_ours(code):
            return "fault", "", "print"
        return "unsure", "it is not Python as it stands", ""
    if any(
        frame["file"].startswith("/tmp/lamplighter-reader") and names.package.has_module(frame["module"])
        for frame in frames
    ):
        return "unsure", "it ran code of the clone instead of the installed package", ""
    if isinstance(error.get("import"), dict):
        return _import_error(error, in_example, names.package)
    if kind == "NameError" and in_example:
        return "unsure", f"not self-contained: {first_line(message)}", ""
    if kind in ENVIRONMENTAL or ENVIRONMENTAL & set(error.get("bases", ())) & {"OSError", "SystemExit"}:
        return "needs", f"needs what this place lacks: {kind}: {first_line(message)}", ""
    attribute = error.get("attribute")
    if attribute and in_example:
        if attribute["own"] and attribute["name"]:
            return "fault", "", f"{attribute['of']}.{attribute['name']}"
        return "unsure", first_line(message), ""
    if kind == "TypeError" and in_example:
        return _signature_error(error)
    if kind == "AttributeError" and names.are_ours(code) and error["own_frames"]:
        return "raises", "", ""
    return ("raises", "", "") if error["own_frames"] else ("unsure", f"{kind}: {first_line(message)}", "")


def _import_error(error: dict[str, Any], in_example: bool, package: Package) -> tuple[str, str, str]:
    message = error["message"]
    module, name = error["import"]["module"], error["import"]["name"]
    found = re.match(r"cannot import name '([^']+)' from '([^']+)'", message)
    if found:
        name, module = found[1], found[2]
    importlib_only = all(
        frame["example"] or frame["module"].startswith("importlib") for frame in error.get("frames", [])
    )
    if not package.has_module(module):
        return "needs", f"needs {module or 'a module that is not there'}", ""
    if "partially initialized" in message or not (in_example or importlib_only):
        return "unsure", first_line(message), ""
    if error["type"] == "ModuleNotFoundError" and module in package.modules:
        return "needs", f"needs {module}, which is not installed here", ""
    return "fault", "", f"{module}.{name}" if name and not module.endswith("." + name) else module


def _signature_error(error: dict[str, Any]) -> tuple[str, str, str]:
    message = error["message"]
    found = re.match(
        r"([\w.<>]+)\(\) (?:got an unexpected keyword argument|missing \d+ required|takes |got "
        r"multiple|got some positional)",
        message,
    )
    if found:
        last = found[1].split(".")
        for call in error.get("calls", []):
            names = {
                call["name"],
                f"{call['name']}.__init__",
                call["name"].split(".")[-1],
                f"{call['name'].split('.')[-1]}.__init__",
            }
            if call["own"] and not call["ellipsis"] and (found[1] in names or last[-1] in names):
                return "fault", "", call["name"] or call["text"]
    return "unsure", f"TypeError: {first_line(message)}", ""


def error_is_meant(block: Block, around: str) -> bool:
    comments = " ".join(re.findall(r"#.*", around))
    return bool(
        ERROR_MEANT.search(comments)
        or ERROR_MEANT.search(block.before[-240:])
        or re.match(r"^.{0,80}\b(rais|error|exception|fail)", block.after, re.IGNORECASE)
    )


def error_line(error: dict[str, Any]) -> int | None:
    """The line of the block on which it was raised."""
    return next((frame["line"] for frame in error.get("frames", []) if frame["example"]), None)


def hint_of(error: dict[str, Any]) -> str:
    found = re.search(r"Did you mean: '([^']+)'", error.get("message", ""))
    if found:
        return found[1]
    for call in error.get("calls", []):
        if call["own"] and call["signature"]:
            return f"{call['text']}{call['signature']}"
    return ""


def first_line(text: str) -> str:
    """Without the path that an ImportError ends with."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")[:200]
    return re.sub(r" \(/\S+\)$", "", line)
