"""lua/run_mark.lua"""

from __future__ import annotations

from tests.lua.tables import AHEAD, NOW, PAST, Case, run, table
from tests.servers import RunningServer

SENDING = {"runs": {"e": f"{AHEAD} sending 1 {PAST} b1"}, "lapses": {"e": AHEAD}}
RUNNING = {"runs": {"e": f"{AHEAD} running 1 {PAST} w1"}, "lapses": {"e": AHEAD}}
OVER = {"runs": {"e": f"{AHEAD} over 1 {PAST} "}, "lapses": {"e": AHEAD}}
SENT = {"runs": {"e": f"{AHEAD} sent 1 {PAST} b1"}, "lapses": {"e": AHEAD}}
LATER = AHEAD + 5
SOONER = AHEAD - 5


def marked(state: str, since: object = "NOW") -> dict[str, dict[str, object]]:
    """Return the keys with one run that was noted by this call."""
    return {"runs": {"e": f"{LATER} {state} 1 {since} me"}, "lapses": {"e": LATER}}


@table(
    Case("what is about to be sent", {}, ["me", "e", "1", "sending", LATER], [], marked("sending")),
    Case("for a time from now", {}, ["me", "e", "1", "sending", "+5000000000"], [],
         {"runs": {"e": "NOW+5000000000 sending 1 NOW me"}, "lapses": {"e": NOW + 5_000_000_000}}),
    Case("what is sent again", SENDING, ["me", "e", "1", "sending", LATER], [], marked("sending", PAST)),
    Case("what runs is not sent", RUNNING, ["me", "e", "1", "sending", LATER], [], RUNNING),
    Case("what is over is not sent", OVER, ["me", "e", "1", "sending", LATER], [], OVER),
    Case("what was sent", SENDING, ["me", "e", "1", "sent", LATER], [], marked("sent")),
    Case("what was sent and runs", RUNNING, ["me", "e", "1", "sent", LATER], [], RUNNING),
    Case("what was sent and is over", OVER, ["me", "e", "1", "sent", LATER], [], OVER),
    Case("what was sent and is not known", {}, ["me", "e", "1", "sent", LATER], []),
    Case("what begins", SENDING, ["me", "e", "1", "running", LATER], [], marked("running")),
    Case("what begins unknown", {}, ["me", "e", "1", "running", LATER], [], marked("running")),
    Case("what begins again", OVER, ["me", "e", "1", "running", LATER], [], marked("running")),
    Case("what goes on", RUNNING, ["me", "e", "1", "renewed", LATER], [], marked("running", PAST)),
    Case("what goes on and is over", OVER, ["me", "e", "1", "renewed", LATER], ["1"], OVER),
    Case("what goes on and is not known", {}, ["me", "e", "1", "renewed", LATER], ["1"]),
    Case("what waits for a retry", RUNNING, ["me", "e", "1", "waiting", LATER], [], marked("sent")),
    Case("what has no message is cut short", SENT, ["me", "e", "1", "missing", SOONER], [],
         {"runs": {"e": f"{SOONER} sent 1 {PAST} b1"}, "lapses": {"e": SOONER}}),
    Case("what has no message lasts no longer for it", SENT, ["me", "e", "1", "missing", LATER], [], SENT),
    Case("what has no message and runs", RUNNING, ["me", "e", "1", "missing", SOONER], [], RUNNING),
    Case("what has no message and is being sent", SENDING, ["me", "e", "1", "missing", SOONER], [], SENDING),
    Case("what has no message and is over", OVER, ["me", "e", "1", "missing", SOONER], [], OVER),
    Case("what has no message and is not known", {}, ["me", "e", "1", "missing", SOONER], []),
    Case(
        "another run of the entry stays",
        RUNNING,
        ["me", "e", "2", "sending", LATER],
        [],
        {"runs": {"e": f"{AHEAD} running 1 {PAST} w1\n{LATER} sending 2 NOW me"}, "lapses": {"e": LATER}},
    ),
    Case(
        "what has lapsed is swept",
        {"runs": {"e": f"{PAST} running 1 {PAST} w1", "f": "x"}, "lapses": {"e": PAST, "f": PAST}},
        ["me", "e", "2", "running", LATER],
        [],
        {"runs": {"e": f"{LATER} running 2 NOW me"}, "lapses": {"e": LATER}},
    ),
)  # fmt: skip
def test_run_mark(any_server: RunningServer, case: Case) -> None:
    """A word about a run changes what it may change, and nothing that was said later."""
    run(any_server, "run_mark", case)
