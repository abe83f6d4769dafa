"""Blocks and passages of README and docs pages, from ordinary and from tricky sources."""

from hypothesis import given
from hypothesis import strategies as st

from review_agents.probes.documents import Block, BlockKind, read_document
from review_agents.probes.markup import PassageKind

MARKDOWN = """\
---
title: front matter
---
# Tool

Install:

    pip install tool

## Use

`config.toml`:

```toml
a = 1
```

Create a file `app.py` with the following content:

```python
import tool
```

```python title="named.py"
x = 1
```

```console
$ cat in.txt
one
$ tool in.txt
1
```

```pycon
>>> import tool
>>> tool.f(1)
2
```

Run it:

```bash
tool --all
```

which prints:

```
done
```

1. In a list:

   ```py
   tool.g()
   ```

> ```sh
> tool quoted
> ```

### Old versions

```python
tool.old()
```

!!! note

    Inside:

    ```python
    tool.h()
    ```

~~~
plain text
~~~

```{code-block} python
:caption: cap.py
:linenos:

tool.myst()
```

````{note}
```{doctest}
>>> 1
1
```
````

<!-- skip: next -->
```python
tool.skipped()
```

<!-- invisible-code-block: python
hidden = 1
-->

| option | meaning |
| --- | --- |
| `-q`, `--quiet` | says *nothing* |

Setext
------

See [a link](x.md) and ![image](y.png) and `code`.
"""


def blocks(source: str, file: str = "README.md", programs: tuple[str, ...] = ("tool",)) -> list[Block]:
    return list(read_document(file, source, programs).blocks)


def test_markdown_blocks_come_in_order_with_kind_and_line():
    found = [(block.line, block.kind, block.filename) for block in blocks(MARKDOWN)]
    assert found == [
        (8, BlockKind.SHELL, ""),
        (15, BlockKind.CONFIG, "config.toml"),
        (21, BlockKind.PYTHON, "app.py"),
        (25, BlockKind.PYTHON, "named.py"),
        (29, BlockKind.CONSOLE, ""),
        (36, BlockKind.SESSION, ""),
        (44, BlockKind.SHELL, ""),
        (50, BlockKind.OUTPUT, ""),
        (56, BlockKind.PYTHON, ""),
        (60, BlockKind.SHELL, ""),
        (66, BlockKind.PYTHON, ""),
        (74, BlockKind.PYTHON, ""),
        (78, BlockKind.OTHER, ""),
        (85, BlockKind.PYTHON, "cap.py"),
        (90, BlockKind.SESSION, ""),
        (97, BlockKind.PYTHON, ""),
        (101, BlockKind.PYTHON, ""),
    ]


def test_each_block_begins_at_its_line():
    lines = MARKDOWN.splitlines()
    for block in blocks(MARKDOWN):
        first = block.text.splitlines()[0].strip()
        assert first in lines[block.line - 1], (block.line, first)


def test_headings_make_a_path():
    found = blocks(MARKDOWN)
    assert found[0].headings == ("Tool",)
    assert found[1].headings == ("Tool", "Use")
    assert found[10].headings == ("Tool", "Use", "Old versions")


def test_what_must_not_be_run_says_why():
    skipped = {block.text: block.skip for block in blocks(MARKDOWN) if block.skip}
    assert skipped["tool.old()"] == 'it stands below "Old versions"'
    assert "marked" in skipped["tool.skipped()"]


def test_hidden_set_up_code_is_known_as_such():
    assert [block.text for block in blocks(MARKDOWN) if block.hidden] == ["hidden = 1"]


def test_passages_keep_code_and_lose_other_markup():
    document = read_document("README.md", MARKDOWN)
    last = document.passages[-1]
    assert last.text == "See a link and and `code`." and last.headings == ("Tool", "Setext")
    row = next(passage for passage in document.passages if passage.kind is PassageKind.ROW)
    assert row.cells == ("`-q`, `--quiet`", "says nothing") and row.header == ("option", "meaning")


RST = """\
====
Tool
====

Run::

    $ tool x
    1

.. code-block:: python
   :caption: app.py

   import tool

* item::

      tool.in_item()

>>> tool.f(1)
2

.. note::

   .. code-block:: bash

      tool --in-note

.. testsetup::

   import tool

.. testcode::

   print(tool.f(2))

.. testoutput::

   3

.. highlight:: python

Then::

    tool.highlighted()

.. automodule:: tool

.. some-unknown-directive:: x
   :option: y

   text

Options
-------

-q, --quiet  say nothing
-o FILE      write there

.. include:: /etc/passwd

.. option:: --long <n>

   Explained with :func:`tool.f` and ``--short``.

=====  ======
code   why
=====  ======
``2``  wrong
=====  ======
"""


def test_rst_blocks_come_in_order_with_kind_and_line():
    found = [(block.line, block.kind, block.filename) for block in blocks(RST, "README.rst")]
    assert found == [
        (7, BlockKind.CONSOLE, ""),
        (13, BlockKind.PYTHON, "app.py"),
        (17, BlockKind.PYTHON, ""),
        (19, BlockKind.SESSION, ""),
        (26, BlockKind.SHELL, ""),
        (30, BlockKind.PYTHON, ""),
        (34, BlockKind.PYTHON, ""),
        (38, BlockKind.OUTPUT, ""),
        (44, BlockKind.PYTHON, ""),
    ]
    assert [block.hidden for block in blocks(RST, "README.rst")].count(True) == 1


def test_rst_includes_nothing_and_knows_sphinx_roles_and_options():
    text = " ".join(passage.text for passage in read_document("README.rst", RST).passages)
    assert "root:" not in text and "`tool.f`" in text and "`--long <n>`" in text
    rows = [p.cells for p in read_document("README.rst", RST).passages if p.kind is PassageKind.ROW]
    assert ("`-q`, `--quiet`", "say nothing") in rows and ("`2`", "wrong") in rows


def test_a_python_prompt_inside_a_transcript_becomes_a_session():
    found = blocks("```console\n$ tool a\n1\n$ python\n>>> import tool\n>>> tool.f(1)\n2\n```\n")
    assert [block.kind for block in found] == [BlockKind.CONSOLE, BlockKind.SESSION]
    assert found[1].line == 5 and found[1].text.startswith(">>> import tool")


def test_an_indented_block_is_known_by_its_words():
    source = (
        'a\n\n    tool run\n\nb\n\n    import tool\n    tool.f()\n\nc\n\n    some words of prose\n\nd\n\n    {"a": 1}\n'
    )
    assert [block.kind for block in blocks(source)] == [
        BlockKind.SHELL, BlockKind.PYTHON, BlockKind.OTHER, BlockKind.CONFIG,
    ]  # fmt: skip


def test_a_block_below_another_is_its_output_only_when_something_says_so():
    said = "```python\nprint(1)\n```\n\nOutput:\n\n```text\n1\n```\n"
    silent = "```python\nprint(1)\n```\n\nThe file on disk:\n\n```text\n1\n```\n"
    assert blocks(said)[1].kind is BlockKind.OUTPUT
    assert blocks(silent)[1].kind is BlockKind.OTHER


def test_the_text_below_may_name_the_file():
    (block,) = blocks('```json\n{"a": 1}\n```\n\nThis is `examples/a.json`. It has keys.\n')
    assert block.filename == "examples/a.json"


def test_a_file_that_is_only_mentioned_is_not_the_block():
    assert blocks("The settings in `a.toml` are read first.\n\n```toml\nb = 1\n```\n")[0].filename == ""
    assert blocks("Create `a.toml` and `b.toml`:\n\n```toml\nb = 1\n```\n")[0].filename == ""


def test_files_outside_the_folder_are_not_made():
    assert blocks('```python title="../../x.py"\na = 1\n```\n')[0].filename == ""


@given(st.text(max_size=400))
def test_no_text_breaks_the_reading(text: str):
    read_document("README.md", text)
    read_document("README.rst", text)


@given(st.lists(st.sampled_from(MARKDOWN.splitlines() + RST.splitlines()), max_size=40))
def test_no_mixture_of_lines_breaks_the_reading(lines: list[str]):
    source = "\n".join(lines)
    for file in ("README.md", "README.rst"):
        for block in read_document(file, source).blocks:
            assert 1 <= block.line <= len(lines) + 1
