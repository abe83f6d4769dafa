"""How the beat ends."""

import subprocess
import sys

# In a process of its own, because the handlers of a process are global.
ENDED_TWICE = """
import os, signal
from orchestrator.jobs.app import Once

class Service:
    def sync(self):
        os.kill(os.getpid(), signal.SIGTERM)  # the second signal, while the first is being obeyed
        print("synced once")

Once.install_sync_handler(object.__new__(Once), Service())
try:
    os.kill(os.getpid(), signal.SIGINT)
finally:
    os.kill(os.getpid(), signal.SIGINT)  # and a third while leaving
"""


ENDED_AT_ONCE = """
import os, signal
from orchestrator.jobs.app import Once

class Service:
    def sync(self):
        print("synced once")

Once.install_sync_handler(object.__new__(Once), Service())
both = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, both)
for number in both:
    os.kill(os.getpid(), number)
signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
"""


def test_two_signals_that_arrive_together_end_the_beat_quietly() -> None:
    done = subprocess.run([sys.executable, "-c", ENDED_AT_ONCE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "synced once\n", "")


def test_a_second_signal_while_the_beat_ends_does_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", ENDED_TWICE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "synced once\n", "")
