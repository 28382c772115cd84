#!/bin/sh
# Runs kombu's and Celery's own integration suites against this transport.
#   tests/conformance/run.sh KOMBU_CHECKOUT CELERY_CHECKOUT [arguments of tests.conformance.celery_suite]
# A checkout is a directory with the project's t/, best of the versions that are installed: an unpacked sdist will do.
# Needs, beside the test extra: pytest-timeout pytest-rerunfailures pydantic cryptography SQLAlchemy Django.
set -eu
kombu=$(cd "$1" && pwd)
celery=$(cd "$2" && pwd)
shift 2
cd "$(dirname "$0")/../.."

KOMBU_CHECKOUT="$kombu" "${PYTHON:-python}" -m pytest tests/conformance/test_kombu.py -q
exec "${PYTHON:-python}" -m tests.conformance.celery_suite "$celery" "$@"
