"""Sent as `sitecustomize.py` beside a test that failed: notes, one a line, what it tried to reach outside the sandbox.

A test may fail because a connection or a program that is not here was missed in silence. Child processes of Python are
watched as well. Lines are `network HOST` and `program NAME`.
"""

import os
import shutil
import sys

SEEN = os.environ.get("LAMPLIGHTER_SEEN", "")
LOCAL = ("127.", "::1", "localhost", "0.0.0.0", "::", "ip6-", "localhost.", "/", "\0")
BUSY = False


def note(line):
    with open(SEEN, "a") as out:
        out.write(line + "\n")


def is_local(host):
    if host is None or host == "" or host == b"":
        return True
    text = host.decode("utf-8", "replace") if isinstance(host, bytes) else str(host)
    return text.startswith(LOCAL) or text == os.uname().nodename


def watch(event, arguments):
    global BUSY
    if BUSY or event not in ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "subprocess.Popen"):
        return
    BUSY = True
    try:
        if event in ("socket.getaddrinfo", "socket.gethostbyname") and not is_local(arguments[0]):
            note("network " + repr(arguments[0]))
        elif event == "socket.connect":
            address = arguments[1]
            host = address[0] if isinstance(address, tuple) else address
            if not is_local(host):
                note("network " + repr(host))
        elif event == "subprocess.Popen":
            name = os.fspath(arguments[0])
            name = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
            if shutil.which(name) is None:
                note("program " + name)
    except Exception:
        return
    finally:
        BUSY = False


if SEEN:
    sys.addaudithook(watch)
