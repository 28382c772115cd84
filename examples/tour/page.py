"""Makes docs/tour.md of what the tour says: ``examples/tour/run.sh | python -m examples.tour.page > docs/tour.md``."""

import sys

_HEAD = """\
# A tour of every command

What `examples/tour/run.sh` says: an embedded server, two workers and two beats, every command once, each output
checked. A test runs it and compares the commands with this page. `celery -A app zsched COMMAND --help` says more.
"""


def page(text: str) -> str:
    """Return the transcript as Markdown."""
    parts = [_HEAD]
    for section in text.split("\n# ")[0:]:
        head, _, rest = section.removeprefix("# ").partition("\n")
        body = rest.strip("\n")
        parts.append(f"\n## {head}\n" + (f"\n```console\n{body}\n```\n" if body else ""))
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page(sys.stdin.read()))
