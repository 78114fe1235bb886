"""The health monitor: when the daemon counts as answering, and as dead."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from sglang_qsa.demo.processes import HOST, free_port
from sglang_qsa.tiers.lmcache.health import HealthMonitor

INTERVAL_S = 0.02
DEADLINE_S = 5.0


@dataclass
class Daemon:
    """What the monitor sees of a daemon, and what it did about it."""

    answers: bool = True
    accepts: bool = True
    pings: int = 0
    registrations: int = 0
    deaths: int = 0
    during_registration: Callable[[], None] = field(default=lambda: None)

    def ping(self) -> bool:
        self.pings += 1
        return self.answers

    def register(self) -> bool:
        self.registrations += 1
        self.during_registration()
        return self.accepts

    def die(self) -> None:
        self.deaths += 1


@contextmanager
def watched(
    daemon: Daemon,
    address: tuple[str, int] | None = None,
    interval_s: float = INTERVAL_S,
) -> Iterator[HealthMonitor]:
    monitor = HealthMonitor(
        ping=daemon.ping,
        register=daemon.register,
        on_death=daemon.die,
        address=address,
        interval_s=interval_s,
    )
    monitor.start()
    try:
        yield monitor
    finally:
        monitor.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def probes(daemon: Daemon, count: int) -> None:
    """Wait for as many whole probes from now on."""
    target = daemon.pings + count + 1
    wait_for(lambda: daemon.pings >= target)


@pytest.fixture
def frozen_port() -> Iterator[tuple[str, int]]:
    """The kernel accepts connections for a process that never looks at them."""
    with socket.create_server((HOST, 0), backlog=64) as server:
        yield server.getsockname()[:2]


def test_healthy_daemon_is_ready_and_left_alone() -> None:
    daemon = Daemon()
    with watched(daemon) as monitor:
        assert monitor.ready
        probes(daemon, 3)
        assert monitor.ready
    assert (daemon.registrations, daemon.deaths) == (0, 0)


def test_silent_daemon_is_not_ready_until_it_has_registered_us_again() -> None:
    daemon = Daemon(answers=False, accepts=False)
    with watched(daemon) as monitor:
        wait_for(lambda: not monitor.ready)
        assert daemon.registrations == 0
        daemon.answers = True
        wait_for(lambda: daemon.registrations > 2)
        assert not monitor.ready
        daemon.accepts = True
        wait_for(lambda: monitor.ready)
        settled = daemon.registrations
        probes(daemon, 3)
        assert daemon.registrations == settled


def test_suspicion_holds_until_the_next_registration() -> None:
    daemon = Daemon()
    with watched(daemon) as monitor:
        monitor.suspect("a test")
        wait_for(lambda: daemon.registrations == 1)
        wait_for(lambda: monitor.ready)


def test_suspicion_is_seen_at_once_and_probed_at_once() -> None:
    """Not after the interval, which may be long."""
    daemon = Daemon(accepts=False)
    with watched(daemon, interval_s=60.0) as monitor:
        assert monitor.ready
        monitor.suspect("a test")
        assert not monitor.ready
        wait_for(lambda: daemon.registrations == 1)


def test_suspicion_during_a_registration_is_about_the_new_state() -> None:
    """The daemon may have been replaced again while it answered."""
    daemon = Daemon()
    with watched(daemon) as monitor:

        def replaced_once() -> None:
            if daemon.registrations == 1:
                monitor.suspect("while registering")

        daemon.during_registration = replaced_once
        monitor.suspect("a test")
        wait_for(lambda: monitor.ready)
    assert daemon.registrations == 2


def test_refused_port_is_a_dead_daemon() -> None:
    daemon = Daemon(answers=False)
    with watched(daemon, (HOST, free_port())) as monitor:
        wait_for(lambda: daemon.deaths > 0)
        assert not monitor.ready


def test_frozen_daemon_is_not_dead(frozen_port: tuple[str, int]) -> None:
    """It may still write to this server's memory when it goes on."""
    daemon = Daemon(answers=False)
    with watched(daemon, frozen_port) as monitor:
        probes(daemon, 3)
        assert not monitor.ready
    assert daemon.deaths == 0


def test_daemon_without_a_port_is_never_declared_dead() -> None:
    daemon = Daemon(answers=False)
    with watched(daemon, None):
        probes(daemon, 3)
    assert daemon.deaths == 0


def test_answering_daemon_is_not_asked_for_its_port() -> None:
    daemon = Daemon()
    with watched(daemon, (HOST, free_port())):
        probes(daemon, 3)
    assert daemon.deaths == 0


def test_stop_ends_the_thread_before_its_interval() -> None:
    daemon = Daemon()
    before = threading.active_count()
    started = time.monotonic()
    with watched(daemon, interval_s=60.0):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert time.monotonic() - started < DEADLINE_S


def test_stop_of_a_monitor_that_never_ran() -> None:
    """A launch that is refused ends before the thread is started."""
    daemon = Daemon()
    HealthMonitor(
        ping=daemon.ping,
        register=daemon.register,
        on_death=daemon.die,
        address=None,
        interval_s=60.0,
    ).stop()
    assert daemon.pings == 0


def test_suspicions_do_not_make_a_tight_loop() -> None:
    """Each store that a daemon rejects raises one; it must not be flooded."""
    daemon = Daemon(accepts=False)
    with watched(daemon, interval_s=0.2) as monitor:
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            monitor.suspect("a test")
            time.sleep(0.002)
    assert daemon.pings < 15  # one per quarter of the interval
