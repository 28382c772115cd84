"""Settings on real Celery apps, in every spelling that Celery knows."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

from celery_zsched import ConfigurationError, settings
from celery_zsched.options import fields
from celery_zsched.server_options import ServerOptions
from celery_zsched.settings import Settings, TransportSettings
from celery_zsched.transport_settings import IDLE_OPTIONS

URL = "redis://localhost:6379/3"


def app_with(**conf: Any) -> Celery:
    app = Celery("demo", set_as_current=False)
    app.conf.update(conf)
    return app


def faults_of(**conf: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_conf(app_with(**conf).conf)
    return caught.value.faults


def by_update() -> Celery:
    return app_with(zsched_url=URL, zsched_max_block=7)


def by_attribute() -> Celery:
    app = Celery("demo", set_as_current=False)
    app.conf.zsched_url = URL
    app.conf.zsched_max_block = 7
    return app


def by_attribute_after_use() -> Celery:
    app = Celery("demo", set_as_current=False)
    assert app.conf.enable_utc
    app.conf.zsched_url = URL
    app.conf.zsched_max_block = 7
    return app


def by_lower_case_module() -> Celery:
    app = Celery("demo", set_as_current=False)
    app.config_from_object(SimpleNamespace(zsched_url=URL, zsched_max_block=7, task_serializer="json"))
    return app


def by_upper_case_module() -> Celery:
    app = Celery("demo", set_as_current=False)
    app.config_from_object(SimpleNamespace(ZSCHED_URL=URL, ZSCHED_MAX_BLOCK=7, CELERY_TASK_SERIALIZER="json"))
    return app


def by_namespace() -> Celery:
    app = Celery("demo", set_as_current=False)
    app.config_from_object(SimpleNamespace(CELERY_ZSCHED_URL=URL, CELERY_ZSCHED_MAX_BLOCK=7), namespace="CELERY")
    return app


def by_another_namespace() -> Celery:
    app = Celery("demo", set_as_current=False)
    source = SimpleNamespace(JOBS_ZSCHED_URL=URL, JOBS_ZSCHED_MAX_BLOCK=7, OTHER_ZSCHED_TYPO=1)
    app.config_from_object(source, namespace="JOBS")
    return app


def by_namespace_and_update() -> Celery:
    app = Celery("demo", set_as_current=False)
    app.config_from_object(SimpleNamespace(CELERY_ZSCHED_URL=URL, CELERY_ZSCHED_MAX_BLOCK=99), namespace="CELERY")
    assert app.conf.enable_utc
    app.conf.update(zsched_max_block=7)
    return app


@pytest.mark.parametrize(
    "make",
    [
        by_update,
        by_attribute,
        by_attribute_after_use,
        by_lower_case_module,
        by_upper_case_module,
        by_namespace,
        by_another_namespace,
        by_namespace_and_update,
    ],
)
def test_a_setting_is_found_in_every_spelling_that_celery_knows(make: Any) -> None:
    """However the app was configured, the same settings come out, and an update has the last word."""
    read = Settings.from_conf(make().conf)
    assert (read.url, read.max_block) == (URL, 7.0)


def test_a_plain_mapping_will_do() -> None:
    """Tools and tests may pass a dictionary instead of an app's configuration."""
    assert Settings.from_conf({"zsched_url": URL, "zsched_misfire": "SKIP"}).misfire == "skip"


def test_all_faults_are_told_together_with_the_remedy() -> None:
    """A mistyped name gets the nearest known one, a bad value what it must be, and nothing hides anything else."""
    faults = faults_of(broker_url=URL, zsched_max_blok=3, zsched_lease_timeout="soon", zsched_misfire="maybe")
    assert faults == (
        "zsched_max_blok is not a known setting (did you mean zsched_max_block?)",
        "zsched_lease_timeout is 'soon'; it must be seconds, 0.5 or more",
        "zsched_misfire is 'maybe'; it must be 'once' or 'skip' or 'all'",
    )


def test_the_nearest_name_is_spelled_as_the_user_spells() -> None:
    """A fault names the setting as it stands in the user's own file."""
    app = Celery("demo", set_as_current=False)
    app.config_from_object(SimpleNamespace(CELERY_BROKER_URL=URL, CELERY_ZSCHED_MAX_BLOCK=-1), namespace="CELERY")
    with pytest.raises(ConfigurationError, match=r"^CELERY_ZSCHED_MAX_BLOCK is -1; it must be seconds, 0.1 or more$"):
        Settings.from_conf(app.conf)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/1", "zsched+redis://h/1", "rediss://h", "unix:///run/redis.sock", "embedded://", "valkeys://h",
        "sentinel://a:26379;sentinel://b:26379", "zsched+embedded:///var/lib/app",
    ],
)  # fmt: skip
def test_the_broker_holds_the_schedule_when_it_can(url: str) -> None:
    """Without zsched_url the broker's URL serves, with its prefix and its connection options."""
    options = {"global_keyprefix": "zz:", "socket_timeout": 3, "master_name": "mymaster"}
    app = app_with(broker_url=url, broker_transport_options=options, zsched_redis_options={"socket_timeout": 4})
    read = Settings.from_conf(app.conf)
    assert (read.url, read.prefix) == (url, "zz:zsched")
    assert read.redis_options == {"socket_timeout": 4, "master_name": "mymaster"}


def test_a_server_of_its_own_takes_nothing_from_the_broker() -> None:
    """With zsched_url the broker may be anything, and its options stay with it."""
    options = {"global_keyprefix": "zz:", "confirm_publish": True}
    read = Settings.from_conf(app_with(broker_url="amqp://h", zsched_url=URL, broker_transport_options=options).conf)
    assert (read.prefix, read.redis_options) == ("zsched", {})


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({}, "there is no broker_url; set zsched_url to"),
        ({"broker_url": "amqp://guest@h//"}, "the broker is amqp://…, which cannot hold the schedule; set zsched_url"),
        ({"broker_url": ["redis://a", "redis://b"]}, "broker_url names 2 servers"),
        ({"zsched_url": "http://h"}, "zsched_url has the scheme http://; it must be one of redis://"),
        ({"zsched_url": "localhost"}, "zsched_url has no scheme; it needs redis://"),
        ({"zsched_url": 5}, "zsched_url is not usable (value not shown); it must be text"),
        ({"zsched_url": URL, "zsched_prefix": "a{b}"}, "zsched_prefix is 'a{b}'; it must be a name without blanks"),
    ],
)
def test_a_server_that_cannot_be_used_is_explained(conf: dict[str, Any], says: str) -> None:
    """A missing or wrong server says what was read and what to set."""
    (fault,) = faults_of(**conf)
    assert fault.startswith(says)


def test_no_fault_shows_a_password() -> None:
    """A URL with a password is not repeated in a complaint about it."""
    faults = faults_of(zsched_url="htp://:hunter2@h/0", zsched_max_block=-1)
    assert not any("hunter2" in fault for fault in faults)


def test_every_option_of_kombus_redis_transports_is_known() -> None:
    """Nothing that kombu's Redis transports accept is refused."""
    accepted = {*kombu_redis.SentinelChannel.from_transport_options, *virtual.Channel.from_transport_options}
    known = {*fields(TransportSettings), *fields(ServerOptions), *IDLE_OPTIONS, "visibility_timeout"}
    assert accepted - known == set()


def test_options_that_change_nothing_are_named_once_each() -> None:
    """An option of kombu's without effect gives a notice, unless it asks for what is done anyway."""
    _, notices = TransportSettings.from_options(
        {"fanout_prefix": True, "fanout_patterns": False, "unacked_key": "u", "max_retries": 3}
    )
    assert [notice.partition(" changes nothing")[0] for notice in notices] == [
        "broker_transport_options['fanout_patterns'] = False",
        "broker_transport_options['unacked_key'] = 'u'",
    ]


@pytest.mark.parametrize(
    ("options", "lease", "notices"),
    [
        ({"visibility_timeout": 5}, 5.0, 0),
        ({"visibility_timeout": timedelta(hours=12)}, 30.0, 1),
        ({"visibility_timeout": 43200, "lease_timeout": 60}, 60.0, 0),
        ({"lease_timeout": "2.5"}, 2.5, 0),
        ({}, 30.0, 0),
    ],
)
def test_a_short_visibility_timeout_is_a_lease(options: dict[str, Any], lease: float, notices: int) -> None:
    """It shortens the lease, never lengthens it, and gives way to a lease that was asked for."""
    read, said = TransportSettings.from_options(options)
    assert (read.lease_timeout, len(said)) == (lease, notices)


def test_a_mistyped_transport_option_is_refused() -> None:
    """Kombu ignores what it does not know; here it is an error with the name that was meant."""
    with pytest.raises(ConfigurationError) as caught:
        TransportSettings.from_options({"visibility_timout": 5, "priority_steps": "high", "delivery_limit": 0})
    assert caught.value.faults == (
        "broker_transport_options['visibility_timout'] is not a known setting (did you mean "
        "broker_transport_options['visibility_timeout']?)",
        "broker_transport_options['priority_steps'] is 'high'; it must be a list of whole numbers, 0 or more",
        "broker_transport_options['delivery_limit'] is 0; it must be a whole number, 1 or more, or None (no limit)",
    )


def test_options_of_the_connection_are_passed_on_and_checked() -> None:
    """What belongs to the connection goes there, and its faults are told with the others."""
    read, _ = TransportSettings.from_options({"socket_keepalive": "false", "lease_timeout": 3, "client_name": "me"})
    assert read.connection == {"socket_keepalive": "false", "client_name": "me"}
    with pytest.raises(ConfigurationError) as caught:
        TransportSettings.from_options({"socket_timeout": -1, "lease_timeout": 0})
    assert len(caught.value.faults) == 2


def test_the_page_of_settings_is_current() -> None:
    """``docs/settings.md`` is what ``python -m celery_zsched.settings`` prints."""
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text() == settings.page()
