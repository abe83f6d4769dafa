"""Options, subcommands and choices out of help texts of several parsers."""

from review_agents.probes.help_texts import Help, node_of, read_help
from review_agents.probes.shell import Package

ARGPARSE = """\
usage: tool [-h] [--version] {plan,run} ...

Runs stages.

positional arguments:
  {plan,run}
    plan      show the order
    run       run the stages

options:
  -h, --help  show this help message and exit
  --version   show program's version number and exit
"""
ARGPARSE_SUB = """\
usage: tool plan [-h] [--target STAGE] [--format {list,levels,dot}] file other

positional arguments:
  file                  pipeline file (JSON)

options:
  -h, --help            show this help message and exit
  --target STAGE        only this stage; see --format
  --format {list,levels,dot}, -f {list,levels,dot}
"""
CLICK = """\
Usage: tool [OPTIONS] COMMAND [ARGS]...

  Compare two tables.

Options:
  --version  Show the version and exit.
  -f, --format [json|table|text]  [default: text]
  --help     Show this message and exit.

Commands:
  apply  Apply DELTA, a file that `diff --format json` wrote,...
  diff   Show what changed from OLD to NEW.
         more about it
"""
TYPER = """\
 Usage: tool [OPTIONS] COMMAND [ARGS]...

╭─ Options ────────────────────────────────────╮
│ --install-completion          Install it.    │
│ --help                        Show this.     │
╰──────────────────────────────────────────────╯
╭─ Commands ───────────────────────────────────╮
│ add        Add a thing.                      │
│ list-all   List all things.                  │
╰──────────────────────────────────────────────╯
"""


def test_argparse_names_subcommands_in_braces():
    found = read_help(("tool",), ARGPARSE)
    assert found.subcommands == ("plan", "run") and {"-h", "--version"} <= found.options


def test_braces_behind_an_option_are_its_choices():
    found = read_help(("tool", "plan"), ARGPARSE_SUB)
    assert found.subcommands == () and found.choices == {"--format": ("list", "levels", "dot")}
    assert found.required == 2 and "-f" in found.options


def test_click_lists_commands_below_a_heading():
    found = read_help(("tool",), CLICK)
    assert found.subcommands == ("apply", "diff") and found.choices == {"--format": ("json", "table", "text")}


def test_boxes_are_read_too():
    assert read_help(("tool",), TYPER).subcommands == ("add", "list-all")


def test_prose_holds_no_subcommands():
    assert read_help(("tool",), "usage: tool [-h] file\n\nA tool.\n\n  It does much.\n").subcommands == ()


def test_the_deepest_known_command_is_named():
    package = Package(modules=("tool",), scripts={"tool": "tool.cli:main"})
    tree = {help.path: help for help in (read_help(("tool",), ARGPARSE), read_help(("tool", "plan"), ARGPARSE_SUB))}
    assert node_of(["tool", "plan", "x.json"], tree, package) == (("tool", "plan"), 2)
    assert node_of(["tool", "--quiet", "plan", "x.json"], tree, package) == (("tool", "plan"), 3)
    assert node_of(["tool", "x.json"], tree, package) == (("tool",), 1)
    assert node_of(["python", "-m", "tool", "plan"], tree, package) == (("tool", "plan"), 4)
    assert node_of(["other"], tree, package) == ((), 0)


def test_an_empty_help_is_read():
    assert read_help(("tool",), "") == Help(("tool",), "", frozenset(), ())
