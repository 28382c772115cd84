#!/usr/bin/env bash
# A tour of every command: an embedded server, two workers and two beats; each output is checked.
#
#   examples/tour/run.sh            needs `pip install celery-zsched[embedded]`; takes about a minute
#
# PYTHON picks the interpreter. docs/tour.md is what this says: `examples/tour/run.sh | python -m examples.tour.page`.
set -euo pipefail
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-python}
SCENE=$(mktemp -d /tmp/tour-XXXXXX)
export TOUR_BROKER="zsched+embedded://$SCENE/server" PYTHONWARNINGS=ignore NO_COLOR=1 LOGNAME=ann
started=()

finish() {
  # Twice: a worker lets its task of ten minutes go at the second word only.
  for signal in TERM QUIT; do
    for pid in "${started[@]}"; do kill -"$signal" "$pid" 2>/dev/null || true; done
    sleep 1
  done
  for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
  # The server ends by itself a moment after the last program, and writes until then.
  local over=$((SECONDS + 60))
  until rm -rf "$SCENE" 2>/dev/null || [ $SECONDS -ge $over ]; do sleep 0.2; done
}
trap finish EXIT

celery() { "$PYTHON" -m celery -A examples.tour.app "$@"; }
scene() { "$PYTHON" -m examples.tour.scene "$@"; }

# background NAME ARGS…: start a program; what it says goes to a file.
background() {
  local name=$1
  shift
  # Not by way of celery(): what is ended must be the program, not a shell around it.
  "$PYTHON" -m celery -A examples.tour.app "$@" >"$SCENE/$name.log" 2>&1 &
  started+=($!)
}

# check TEXT [!] ARGS…: run `celery ARGS`, show it and what it says, and look for TEXT. With !, it must fail.
check() {
  local text=$1 must_fail=no code=0
  shift
  if [ "$1" = "!" ]; then
    must_fail=yes
    shift
  fi
  printf '$ celery -A app'
  for word in "$@"; do
    word=${word//$SCENE//tmp/tour-abcdef}
    case $word in *[!A-Za-z0-9_:=.,/+-]* | "") printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  printf '\n'
  celery "$@" >"$SCENE/said" 2>&1 || code=$?
  # Celery waits a second for the answers of workers; a busy machine may take longer than that.
  local over=$((SECONDS + 60))
  while [ $code -eq 69 ] && [ $SECONDS -lt $over ]; do
    code=0
    celery "$@" >"$SCENE/said" 2>&1 || code=$?
  done
  sed "s#$SCENE#/tmp/tour-abcdef#g; s/[ ]*$//" "$SCENE/said"
  printf '\n'
  if [ $must_fail = no ] && [ $code -ne 0 ]; then
    echo "FAILED: exit code $code" >&2
    exit 1
  fi
  if [ $must_fail = yes ] && [ $code -eq 0 ]; then
    echo "FAILED: it should have failed" >&2
    exit 1
  fi
  if ! grep -qF -- "$text" "$SCENE/said"; then
    echo "FAILED: it does not say: $text" >&2
    exit 1
  fi
}

# until_says TEXT ARGS…: run `celery ARGS` until it says TEXT, for at most a minute.
until_says() {
  local text=$1 over=$((SECONDS + 60))
  shift
  until celery "$@" 2>/dev/null | grep -qF -- "$text"; do
    if [ $SECONDS -gt $over ]; then
      echo "FAILED: celery $* never said: $text" >&2
      exit 1
    fi
  done
}

echo "# Two workers and two beats"
echo
background worker1 worker --concurrency=1 --hostname=one@tour
background worker2 worker --concurrency=1 --hostname=two@tour
background beat1 beat --pidfile=
background beat2 beat --pidfile=
until_says "sent" zsched history heartbeat
until_says "2 nodes online" status

echo "# Looking"
echo
check "heartbeat" zsched list
check "every 0:00:02" zsched show heartbeat
check "Z" zsched next heartbeat -n 3
check "T09:30:00+0" zsched next --cron "30 9 * * 1-5" --zone Europe/Paris -n 2
check "sent" zsched history heartbeat
check "is due next" zsched explain heartbeat
check "periodic" zsched timeline --limit 5
check "celery" zsched queues
check "RATE" zsched queues --rate 2
check "yes" zsched beats
check "healthy: 2 beats" zsched health --max-lag 60
check "are the same" zsched plan
check "good" zsched doctor

echo "# Adding and changing"
echo
check "scheduled" zsched add report tour.work --cron "0 9 * * 1-5" --zone Europe/Paris --args "[1]" --reason "asked by sales"
check "already" ! zsched add report tour.work --every 5m
check "scheduled" zsched edit report --cron "30 9 * * 1-5" --expires next
check '"state": "scheduled"' zsched list report --json
check "did you mean" ! zsched show repotr
check '"args": [1]' zsched show report --args

echo "# Pause and resume: an entry"
echo
check "would be paused" zsched pause report --reason "the books are open" --for 2h --dry-run
check "paused" zsched pause report --reason "the books are open" --for 2h
check "the books are open" zsched paused
check "the books are open" zsched explain report
check "the books are open" inspect paused
check "scheduled" zsched resume report
check "paused" control pause_task report "by remote control"
check "scheduled" control resume_task report

echo "# After the server's clock was wrong"
echo
scene ahead report
check "1 entry is ahead" ! zsched doctor
check "reanchor report" zsched explain report
check "would be scheduled" zsched reanchor --ahead --dry-run
check "scheduled" zsched reanchor --ahead --reason "the clock was days ahead"
check "not ahead" zsched reanchor report
check "not ahead" control reanchor_task report

echo "# Pause and resume: a task name, a queue, one message"
echo
scene wait tour-1
check "1 message parked" zsched pause task:tour.work --reason "the database is down"
check "paused" zsched task tour-1
check "1 message put back" zsched resume task:tour.work
check "paused" zsched pause queue:celery --for 90
check "active" zsched resume queue:celery
check "paused" control pause_task tour-1
check "active" control resume_task tour-1

echo "# Run and backfill"
echo
check "sent" zsched run report --reason "for the board"
check "manual" control run_task report "[7]"
check "2 occurrences would be sent" zsched backfill report 2026-11-02T00:00 2026-11-03T23:00 --dry-run
check "2 sent now" zsched backfill report 2026-11-02T00:00 2026-11-03T23:00 --pace 1
check "0 sent now" zsched backfill report 2026-11-02T00:00 2026-11-03T23:00
check "backfill" zsched history report
check "no occurrence" zsched explain report 2026-11-02T12:00
check "08:30:00Z: not sent" zsched explain report 2026-11-02T09:30+01:00 --zone UTC

echo "# Where is it?"
echo
check "waiting" zsched task tour-1
check "waiting" inspect task_state tour-1
check "eta" zsched timeline
check "eta" inspect timeline
check "report" inspect schedule
check "alive" inspect beats

echo "# Cancel"
echo
check "1 message would be removed" zsched cancel tour-1 --dry-run
check "1 message removed" zsched cancel tour-1
scene wait tour-2
check "removed" control cancel_task tour-2
scene slow tour-3
until_says "leased" zsched task tour-3
check "1 with a worker: revoked" zsched cancel id:tour-3

echo "# The dead"
echo
scene dead tour-4
check "delivered 20 times" zsched dead list
check "delivered 20 times" zsched dead show tour-4
check "1 message put back" zsched dead requeue tour-4
scene dead tour-5
check "1 message would be deleted" zsched dead purge --all --dry-run
check "1 message deleted" zsched dead purge --all

echo "# Blackouts"
echo
check "stored" zsched blackout set xmas 2099-12-24/2099-12-26 --note "nobody is there"
check "xmas" zsched blackout list
check "2099-12-24" zsched blackout show xmas
check "scheduled" zsched edit report --blackout xmas
check "named by" ! zsched blackout rm xmas
check "deleted" zsched blackout rm xmas --force

echo "# Moving in and out"
echo
check "exported" zsched export "$SCENE/entries.jsonl"
check "0 created" zsched import "$SCENE/entries.jsonl" --dry-run
check "0 created" zsched import "$SCENE/entries.jsonl"
scene redbeat from-redbeat
check "1 created" zsched import-redbeat --dry-run
check "1 created" zsched import-redbeat
check "1 unchanged" zsched import-redbeat
scene celerybeat "$SCENE/celerybeat-schedule"
check "1 created" zsched import-shelve "$SCENE/celerybeat-schedule"
check "DJANGO_SETTINGS_MODULE" ! zsched import-django-celery-beat

echo "# Records"
echo
check "asked by sales" zsched audit report
check "import" zsched audit --limit 5
check "deleted" zsched rm report --reason "the tour is over"
check "from-redbeat: deleted" zsched rm "*redbeat"
check "healthy" zsched health
echo "The tour is over: every command did what it should."
