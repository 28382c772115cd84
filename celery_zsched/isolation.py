"""What becomes of an entry that a scheduler cannot send: tried again, handed on, set aside, and put back in time.

A fault may be of the entry, of what it needs just now, or of this scheduler alone, as when another release of the app
knows a task's new arguments and this one does not. Nobody can tell which, so nothing is set aside for good: each entry
is tried again, ever later, and while schedulers of another release are alive it is theirs to try first.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from celery_zsched.entry import LastRun
from celery_zsched.errors import ConfigurationError, EntryError, ScheduleError
from celery_zsched.schedules import Schedules
from celery_zsched.stored import Due, State
from celery_zsched.types import SECOND_US

logger = logging.getLogger("celery.beat.zsched")

#: The shortest and the longest pause after a failure, in seconds; it doubles in between. The longest is what a beat may
#: be late by once the fault is over.
BACKOFF_S = (0.2, 1.6)

#: How often a pause doubles at most.
MOST_DOUBLINGS = 10

#: For how long an entry that fails is handed on among schedulers before it is set aside, in seconds, while some of
#: another release are alive.
HANDED_ON_S = 30.0

#: How long a scheduler leaves an entry that it failed at to the others before it tries that itself, in seconds: at
#: least and at most.
LEFT_TO_OTHERS_S = (1.0, 8.0)

#: The first pause of an entry that is set aside, in seconds; it doubles up to the longest. The shorter is for one that
#: schedulers of another release may be able to send.
ASIDE_S = 30.0
ASIDE_AMID_ROLL_S = 5.0
LONGEST_ASIDE_S = 3600.0

#: For how long a scheduler stands back that has handed something on, in seconds, so that others are the first to wake.
STAND_BACK_S = 0.05

#: How many entries a scheduler remembers to have failed at.
REMEMBERED = 10_000


class Neighbours(Protocol):
    """What a scheduler knows of the others."""

    @property
    def release(self) -> str:
        """The release of the app that this one runs."""
        ...

    def others(self) -> bool:
        """Return whether schedulers of another release are alive."""
        ...


@dataclass(slots=True)
class _Trouble:
    """What this scheduler failed at: a document, the occurrence as it was last seen, since when, and when it is tried.

    Moments are those of our own clock, in seconds. ``tries`` are those in all, ``tries_here`` those at the occurrence.
    """

    document: bytes
    occurrence: tuple[int, int]
    since: float
    again_at: float
    tries: int = 0
    tries_here: int = 0
    fault: str = ""


class Isolation:
    """Keeps what cannot be sent apart from what can. For one scheduler."""

    def __init__(self, schedules: Schedules, *, quarantine_after: int) -> None:
        self._schedules = schedules
        self._quarantine_after = quarantine_after
        self._troubles: dict[str, _Trouble] = {}
        self._stands_back = False
        #: The others; None where nobody calls the roll.
        self.neighbours: Neighbours | None = None

    def stand_back(self) -> float:
        """Return for how many seconds to let others claim first, as something was handed on to them since the last."""
        stands_back, self._stands_back = self._stands_back, False
        return STAND_BACK_S if stands_back else 0.0

    def hand_on(self, dues: Sequence[Due], runs: dict[str, LastRun]) -> set[str]:
        """Give back, for others, those of the claimed entries that this one has failed at; return their names."""
        if not self._troubles:
            return set()
        theirs = [due for due in dues if self._is_for_others(due, runs[due.name])]
        if theirs:
            age_s = min(time.monotonic() - self._troubles[due.name].since for due in theirs)
            self._release(theirs, age_s)
        return {due.name for due in theirs}

    def failed(self, due: Due, last: LastRun, exc: Exception) -> None:
        """Try an entry again a little later, by this scheduler or another, or set it aside if that was tried."""
        expected = isinstance(exc, (ScheduleError, EntryError, ConfigurationError))
        fault = str(exc) if expected else f"{type(exc).__name__}: {exc}"
        trace = not expected and not last.asides
        trouble = self._trouble(due, last)
        trouble.tries += 1
        trouble.tries_here += 1
        trouble.fault = fault
        tries = last.failures + due.tries
        least, most = LEFT_TO_OTHERS_S
        trouble.again_at = time.monotonic() + min(most, least * 2.0 ** min(trouble.tries - 1, MOST_DOUBLINGS))
        age_s = time.monotonic() - trouble.since
        if age_s < HANDED_ON_S and self._others():
            if trouble.tries == 1:
                logger.warning(
                    "%s cannot be sent by this beat, of the release %s: %s; beats of another release are alive, so it "
                    "is handed on to them for up to %g s before it is set aside, and the other entries go on",
                    due.name, self._release_name(), fault, HANDED_ON_S, exc_info=trace,
                )  # fmt: skip
            self._release([due], age_s)
        elif last.asides or tries >= self._quarantine_after:
            self._set_aside(due, last, fault, trace=trace)
        else:
            least, most = BACKOFF_S
            pause_s = min(most, least * 2.0 ** min(due.tries - 1, MOST_DOUBLINGS))
            logger.error(
                "%s cannot be sent (try %d of %d): %s; it is tried again in %g s, the other entries go on",
                due.name, tries, self._quarantine_after, fault, pause_s, exc_info=trace,
            )  # fmt: skip
            self._schedules.timeline.release([due.hold], delay_us=round(pause_s * SECOND_US))

    def concluded(self, due: Due, before: LastRun, after: LastRun, *, sent: bool) -> LastRun:
        """Return an entry's record ``after`` a plan: its faults are forgotten when something was sent, not sooner.

        An occurrence that failed and that its misfire rule then drops has failed all the same.
        """
        trouble = self._troubles.pop(due.name, None) if sent else self._troubles.get(due.name)
        if sent:
            return after.but(asides=0, aside_by=None, again_us=None) if before.asides else after
        here = due.document, (due.due_us, before.asides)
        if trouble is not None and here == (trouble.document, trouble.occurrence):
            tries, trouble.tries_here = trouble.tries_here, 0
            return after.but(failures=before.failures + tries, error=trouble.fault, again_us=None)
        return after.but(failures=before.failures, error=before.error, again_us=None) if before.failures else after

    def probe(self, name: str) -> int | None:
        """Put an entry that was set aside back for one try, if this scheduler can read it.

        Return after how many microseconds it is to be seen to again, or None if there is nothing more to do.
        """
        stored = next(iter(self._schedules.get_many([name])), None)
        if stored is None or stored.state is not State.QUARANTINED:
            return None
        if stored.spec is not None:
            if self._schedules.put_back(stored):
                logger.info("%s was set aside and is tried again now: %s", name, stored.fault)
            return None
        if self._others():
            return round(ASIDE_AMID_ROLL_S * SECOND_US)  # they may be able to read it
        record, pause_s = self._aside(stored.last, stored.last.error or stored.fault or "", 1)
        self._schedules.keep_aside(name, record)
        logger.warning("%s stays in quarantine: %s; tried again in %g s", name, stored.fault, pause_s)
        return round(pause_s * SECOND_US)

    # -- Inside

    def _trouble(self, due: Due, last: LastRun) -> _Trouble:
        """Return what is known of the trouble with an entry; another document or occurrence begins anew."""
        now, occurrence = time.monotonic(), (due.due_us, last.asides)
        trouble = self._troubles.get(due.name)
        if trouble is None or trouble.document != due.document:
            while len(self._troubles) >= REMEMBERED:
                del self._troubles[next(iter(self._troubles))]
            trouble = self._troubles[due.name] = _Trouble(due.document, occurrence, now, now)
        elif trouble.occurrence != occurrence:
            trouble.occurrence, trouble.since, trouble.tries_here = occurrence, now, 0
            trouble.again_at = now + LEFT_TO_OTHERS_S[1] / 2
        return trouble

    def _is_for_others(self, due: Due, last: LastRun) -> bool:
        if due.name not in self._troubles or not self._others():
            return False
        trouble, now = self._trouble(due, last), time.monotonic()
        return now < trouble.again_at and now - trouble.since < HANDED_ON_S

    def _release(self, dues: Sequence[Due], age_s: float) -> None:
        # At no regular distance, so that no two of many schedulers take turns for ever; and ever later.
        delay_s = (0.1 + age_s / 10) * random.uniform(0.5, 1.5)
        self._schedules.timeline.release([due.hold for due in dues], delay_us=round(delay_s * SECOND_US))
        self._stands_back = True

    def _set_aside(self, due: Due, last: LastRun, fault: str, *, trace: bool) -> None:
        record, pause_s = self._aside(last, fault, due.tries)
        if not self._schedules.quarantine(due, fault, record):
            return
        if last.asides:
            logger.warning(
                "%s failed once more and stays in quarantine, the %d. time: %s; tried again in %g s",
                due.name, record.asides, fault, pause_s,
            )  # fmt: skip
        else:
            logger.error(
                "%s is set aside in quarantine after %d tries: %s; it is tried again in %g s and then ever later, and "
                "at once when it is mended and saved, or resumed. The others go on",
                due.name, record.failures, fault, pause_s, exc_info=trace,
            )  # fmt: skip

    def _aside(self, last: LastRun, fault: str, tries: int) -> tuple[LastRun, float]:
        """Return the record of an entry that is set aside once more, and the pause until it is tried, in seconds."""
        first_s = ASIDE_AMID_ROLL_S if self._others() else ASIDE_S
        pause_s: float = min(LONGEST_ASIDE_S, first_s * 2.0 ** min(last.asides, MOST_DOUBLINGS))
        release = self._release_name()
        by = self._schedules.timeline.holder
        record = last.but(
            failures=last.failures + tries, error=fault, asides=last.asides + 1,
            aside_by=f"{by} (release {release})" if release else by or None,
            again_us=self._schedules.now_us() + round(pause_s * SECOND_US),
        )  # fmt: skip
        return record, pause_s

    def _others(self) -> bool:
        return self.neighbours is not None and self.neighbours.others()

    def _release_name(self) -> str:
        return "" if self.neighbours is None else self.neighbours.release


def back(name: str, last: LastRun) -> None:
    """Tell that an entry is sent that was set aside, by its record of before."""
    logger.warning(
        "%s is sent again: it was in quarantine, tried %d times in all, last because of: %s",
        name, last.failures, last.error,
    )  # fmt: skip
