"""Is the daemon answering, and does it know this server?

One daemon thread per rank. It never decides whether the tier is used: that is
shared between ranks and belongs to the scheduler thread (`connector.tick`). It
answers one question, `ready`: the daemon answers and holds our registration.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class HealthMonitor:
    """Probes the daemon and registers again whenever it may have been replaced.

    Args:
        ping: one round trip to the daemon; False when it does not answer in time.
        register: (re-)register this rank's pools; False when that failed.
            Registering twice is a no-op for a daemon that already knows us.
        on_death: called when the daemon's port refuses connections, that is, when
            no process is left that could still write to this server's memory.
        address: `(host, port)` of the daemon, or None when it is not TCP.
        interval_s: seconds between probes.
    """

    def __init__(
        self,
        *,
        ping: Callable[[], bool],
        register: Callable[[], bool],
        on_death: Callable[[], None],
        address: tuple[str, int] | None,
        interval_s: float,
    ) -> None:
        self._ping = ping
        self._register = register
        self._on_death = on_death
        self._address = address
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._registered = True
        self._suspicions = 0
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="sglang-qsa-lmcache-health", daemon=True
        )

    @property
    def ready(self) -> bool:
        """The daemon answered its last probe and holds our registration."""
        return self._registered

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns after its current probe."""
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * self._interval_s)

    def suspect(self, reason: str) -> None:
        """Treat the daemon as replaced until it has been probed again."""
        logger.warning("sglang_qsa: LMCache daemon suspected: %s", reason)
        self._mark_suspect()
        self._wake.set()

    def _mark_suspect(self) -> None:
        with self._lock:
            self._suspicions += 1
            self._registered = False

    def _run(self) -> None:
        # A suspicion is probed at once, the next one after a pause: a daemon that
        # rejects everything must not be probed in a tight loop.
        pause_s = self._interval_s / 4
        while not self._stopped.is_set():
            self._wake.wait(self._interval_s - pause_s)
            self._wake.clear()
            if not self._stopped.is_set():
                self._probe()
            self._stopped.wait(pause_s)

    def _probe(self) -> None:
        if not self._ping():
            self._mark_suspect()
            if self._port_refuses():
                self._on_death()
            return
        with self._lock:
            seen, registered = self._suspicions, self._registered
        if registered or not self._register():
            return
        with self._lock:
            # A suspicion raised while we registered is about the new state.
            self._registered = seen == self._suspicions

    def _port_refuses(self) -> bool:
        """True only for a refused connection: a frozen process still accepts."""
        if self._address is None:
            return False
        try:
            socket.create_connection(self._address, timeout=self._interval_s).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False
