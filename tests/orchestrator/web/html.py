"""A page as a list of elements, to say what must and must not be in it."""

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Page:
    elements: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]

    def with_attribute(self, name: str) -> list[Element]:
        return [element for element in self.elements if name in element.attributes]


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice in <{tag} {attrs}>"
        self.page.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        self.page.text += data
        if self.page.elements:
            self.page.elements[-1].text += data


def read(html: str) -> Page:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader.page
