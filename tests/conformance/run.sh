#!/bin/sh
# Runs kombu's and Celery's own integration suites against this transport.
#   tests/conformance/run.sh KOMBU_CHECKOUT CELERY_CHECKOUT [pytest arguments for Celery's suite]
# Needs, beside the test extra: pytest-timeout, pytest-rerunfailures, pytest-subtests, pydantic. A Redis server must
# listen where CONFORMANCE_REDIS says (host:port, 127.0.0.1:6379 by default); its databases 0 and 1 are used.
set -eu
kombu=$(cd "$1" && pwd)
celery=$(cd "$2" && pwd)
shift 2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
redis=${CONFORMANCE_REDIS:-127.0.0.1:6379}

cd "$root"
KOMBU_CHECKOUT="$kombu" ${PYTHON:-python} -m pytest tests/conformance/test_kombu.py -q

# The checkout's own `celery` package must not hide the installed one, so only its tests are used.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$celery/t" "$work/t"
cat > "$work/pytest.ini" <<'INI'
[pytest]
python_classes = test_*
markers =
    sleepdeprived_patched_module
    masked_modules
    patched_environ
    patched_module
    flaky
    timeout
    amqp
    celery
INI
cd "$work"
export TEST_BROKER="zsched+redis://$redis/0" TEST_BACKEND="redis://$redis/1"
export REDIS_HOST="${redis%:*}" REDIS_PORT="${redis#*:}"
suites="t/integration/test_tasks.py t/integration/test_inspect.py t/integration/test_canvas.py
    t/integration/test_worker.py t/integration/test_security.py t/integration/test_loader.py
    t/integration/test_serialization.py"
# Only the package's import makes the scheme known (docs/transport.md), hence -p celery_zsched.
PYTHONPATH="$work:$root" ${PYTHON:-python} -m pytest -c "$work/pytest.ini" --rootdir "$work" \
    -p no:cacheprovider -p celery.contrib.pytest -p celery_zsched -s $suites "$@"
