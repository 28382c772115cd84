"""What became of one occurrence: a line of an entry's history."""

from __future__ import annotations

from dataclasses import dataclass

from celery_zsched.errors import EntryError

#: Stands for a word that is absent.
_NONE = "-"


@dataclass(frozen=True, slots=True)
class Past:
    """One occurrence that is over.

    ``outcome`` is ``sent``, or why it was not: ``misfire``, ``overlap``, ``blackout``, ``buffered``, ``paused``,
    ``quarantined``. ``missed`` is how many occurrences before it were due and not sent; ``by`` is the scheduler or the
    program that did it.
    """

    nominal_us: int
    at_us: int
    outcome: str
    cause: str | None = None
    task_id: str | None = None
    missed: int = 0
    by: str = ""

    @property
    def lateness_us(self) -> int:
        """How long after its nominal time it was dealt with."""
        return self.at_us - self.nominal_us

    def to_line(self) -> str:
        """Return the stored form: the first four words say what it is about, and are never stored twice."""
        about = f"{self.nominal_us} {self.outcome} {self.cause or _NONE} {self.task_id or _NONE}"
        return f"{about} {self.at_us} {self.missed} {self.by}"

    @classmethod
    def from_line(cls, line: str) -> Past:
        """Read the stored form; :class:`~celery_zsched.errors.EntryError` if it is another."""
        try:
            nominal, outcome, cause, task_id, at, missed, by = line.split(" ", 6)
            return cls(int(nominal), int(at), outcome, _word(cause), _word(task_id), int(missed), by)
        except ValueError:
            raise EntryError(f"a line of a history cannot be read: {line!r:.200}") from None


def _word(text: str) -> str | None:
    return None if text == _NONE else text
