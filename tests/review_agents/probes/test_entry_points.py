from review_agents.probes.entry_points import Program, names_itself, subcommands
from review_agents.probes.prepared import Distribution

TOOL = Program(command="my-tool", target="my_tool.cli:main", distribution=Distribution(name="my-tool", version="1.2.0"))


def test_subcommands_are_read_from_argparse_and_click():
    argparse = "usage: tool [-h] {add,rm} ...\n\npositional arguments:\n  {add,rm}\n    add       add it\n"
    click = "Usage: tool [OPTIONS] COMMAND\n\nOptions:\n  --help  Show this.\n\n"
    click += "Commands:\n  add-all  Add all.\n  rm       Remove.\n"
    assert subcommands(argparse) == ["add", "rm"]
    assert subcommands(click) == ["add-all", "rm"]
    assert subcommands("usage: tool [--colour {red,blue}] FILE\n") == []


def test_a_version_line_must_speak_of_the_program_itself():
    assert names_itself("my-tool 1.1.0", TOOL)
    assert names_itself("1.1.0", TOOL)
    assert names_itself("my_tool, version 1.1.0", TOOL)
    assert not names_itself("Python 3.11.2", TOOL)
    assert not names_itself("my-tool with sqlite 3.40.1", TOOL)
