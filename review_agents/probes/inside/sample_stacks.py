"""Put on PYTHONPATH as sitecustomize.py: notes every few milliseconds of processor time what Python is doing.

At its end each process adds `{"stacks": {"file:line:function;...": seconds}}` to the file LAMPLIGHTER_STACKS. The line
is that of the `def`. Processes too short for a tick add nothing, so such programs are run many times.
"""

import atexit
import json
import os
import signal
import time

EVERY_S = 0.002
DEEPEST = 60
stacks: dict = {}


def note(number, frame):
    names = []
    while frame is not None and len(names) < DEEPEST:
        code = frame.f_code
        names.append(f"{code.co_filename}:{code.co_firstlineno}:{code.co_name}")
        frame = frame.f_back
    stack = ";".join(reversed(names))
    stacks[stack] = stacks.get(stack, 0) + 1


def write(target):
    signal.setitimer(signal.ITIMER_PROF, 0)
    whole, spent = sum(stacks.values()), time.process_time()
    try:
        with open(target) as file:
            seconds = json.load(file)["stacks"]
    except (OSError, ValueError, KeyError):
        seconds = {}
    for stack, count in stacks.items():  # by shares, because the kernel may tick more slowly than it was asked to
        seconds[stack] = seconds.get(stack, 0.0) + count / whole * spent
    with open(f"{target}.{os.getpid()}", "w") as out:
        json.dump({"stacks": seconds}, out)
    os.replace(f"{target}.{os.getpid()}", target)


def start():
    target = os.environ.get("LAMPLIGHTER_STACKS")
    if target:
        signal.signal(signal.SIGPROF, note)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        atexit.register(write, target)


start()
