"""What a page has and could do."""

from html.parser import HTMLParser

VOID = ("meta", "link", "br", "path", "use", "image", "rect", "circle", "line", "polygon", "polyline", "col", "hr")
ACTIVE = ("script", "iframe", "object", "embed", "form", "base", "img", "foreignobject", "animate", "set")


class Page(HTMLParser):
    """Collects the tags of a page with their attributes, and what it could do, loads, or does not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.problems: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.problems += self.open

    def all(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of all tags of a name."""
        return [attributes for tag, attributes in self.tags if tag == name]

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ACTIVE:
            self.problems.append(tag)
        for name, value in attrs:
            is_link = name in ("href", "src", "xlink:href", "action", "srcset")
            if name.startswith("on") or (is_link and not (value or "").startswith(("#", "data:image/", "data:,"))):
                self.problems.append(f"{tag} {name}={value}")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag) -> None:
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.problems.append(f"</{tag}>")
