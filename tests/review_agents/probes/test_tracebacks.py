from review_agents.probes.tracebacks import last_traceback, shape_of, surroundings

CHAINED = """Traceback (most recent call last):
  File "/a.py", line 1, in f
    x
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/venv/plain/bin/tool", line 5, in <module>
    from pkg.cli import main
  File "/venv/plain/lib/python3.11/site-packages/pkg/cli.py", line 7, in <module>
    import nothing
ModuleNotFoundError: No module named 'nothing'
more output
"""


def test_the_last_traceback_of_a_chain_counts_with_its_frames():
    raised = last_traceback(CHAINED)
    assert raised is not None
    assert raised.text == "ModuleNotFoundError: No module named 'nothing'"
    assert [(frame.line, frame.function) for frame in raised.frames] == [(5, "<module>"), (7, "<module>")]


def test_no_traceback_gives_none():
    assert last_traceback("usage: tool [-h]\ntool: error: unrecognized arguments: --x") is None
    assert last_traceback("Traceback (most recent call last):\n  cut off") is None


def test_an_installed_files_path_is_left_out_of_the_message():
    text = (
        'Traceback (most recent call last):\n  File "/a.py", line 1, in <module>\nImportError: no name (/venv/x/a.py)\n'
    )
    raised = last_traceback(text)
    assert raised is not None and raised.text == "ImportError: no name"


def test_the_shape_replaces_what_differs_from_run_to_run():
    one = shape_of("ValueError", "bad 17 in /tmp/a/b.txt at 0x7f00 near 'x y'")
    other = shape_of("ValueError", "bad 3 in /home/c.txt at 0x1 near 'z'")
    assert one == other == "ValueError: bad N in PATH at ADDRESS near QUOTED"


def test_what_the_sandbox_lacks_is_told_apart_from_faults():
    assert surroundings("OSError: [Errno 101] Network is unreachable")
    assert surroundings("TclError: no display name and no $DISPLAY environment variable")
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'"
    assert surroundings(missing, ran_program=True) == "needs the program ffmpeg"
    assert not surroundings(missing)  # opened as a file
    assert not surroundings("FileNotFoundError: [Errno 2] No such file or directory: 'data/x.json'")
    assert not surroundings("ValueError: nothing of the kind")
