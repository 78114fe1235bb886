"""Who is at work in a namespace, and what the dead have left behind.

Each process holds the lock of a file in `sessions/` while it lives; the kernel lets
go of it when the process dies, however it dies. Nobody waits for such a lock. The
name of a session is part of every temporary name, intent and hidden record, so that
whatever belongs to no living session is left over.
"""

from __future__ import annotations

import os
from contextlib import suppress

from sglang_qsa.errors import StoreUnavailable, refusal
from sglang_qsa.tiers.store.files import TEMPORARY
from sglang_qsa.tiers.store.namespace import FOLDERS, SESSIONS, TRASH, Namespace
from sglang_qsa.tiers.store.record import Kind
from sglang_qsa.tiers.store.system import System

_RANDOM = 16


class Session:
    """Alive from construction to `close`.

    Raises:
        StoreUnavailable: the namespace cannot be written to.
    """

    def __init__(self, namespace: Namespace, system: System) -> None:
        self._namespace = namespace
        self._system = system
        try:
            self.name, self._fd = self._begin()
        except OSError as error:
            raise StoreUnavailable(
                refusal(
                    found=error.strerror or str(error),
                    wanted="a directory that this process may write to",
                    origin=namespace.folder(SESSIONS),
                    way_out="correct its owner, its mode or its file system",
                )
            ) from error

    def close(self) -> None:
        """End the session; what it left unfinished is for `clean_up` of another."""
        with suppress(OSError):
            self._system.unlink(self._path(self.name))
        self._system.close(self._fd)

    def clean_up(self) -> int:
        """Undo what dead processes left unfinished; the number of files.

        A hidden record goes back, as its process may have died before it learned
        that somebody needs it.
        """
        # The living are asked last: whoever made one of these files was in the list
        # of sessions before, so one who is not living then is dead or done.
        unfinished = [
            (folder, name)
            for folder in FOLDERS.values()
            for name in self._names(folder)
            if name.startswith(TEMPORARY) or folder == FOLDERS[Kind.INTENT]
        ]
        hidden = self._names(TRASH)
        living = self._living()
        cleaned = 0
        for folder, name in unfinished:
            if self._owner(name.removeprefix(TEMPORARY)) not in living:
                cleaned += self._remove(f"{self._namespace.folder(folder)}/{name}")
        for name in hidden:
            if self._owner(name) not in living:
                cleaned += self._put_back(name)
        return cleaned

    def _begin(self) -> tuple[str, int]:
        while True:
            name = os.urandom(_RANDOM).hex()
            fd = self._system.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL)
            # Between the two calls another process may take this one for dead.
            if self._system.try_lock(fd) and self._exists(self._path(name)):
                return name, fd
            self._system.close(fd)

    def _living(self) -> set[str]:
        living = {self.name}
        for name in self._names(SESSIONS):
            if name == self.name:
                continue
            try:
                fd = self._system.open(self._path(name), os.O_RDWR)
            except FileNotFoundError:
                continue  # ended meanwhile
            except OSError:
                living.add(name)
                continue
            try:
                if self._system.try_lock(fd):
                    self._remove(self._path(name))
                else:
                    living.add(name)
            finally:
                self._system.close(fd)
        return living

    def _put_back(self, name: str) -> int:
        _, folder, key = name.split(".", 2)
        hidden = f"{self._namespace.folder(TRASH)}/{name}"
        path = f"{self._namespace.folder(folder)}/{key}"
        if self._exists(path):
            return self._remove(hidden)
        try:
            self._system.rename(hidden, path)
        except OSError:
            return 0
        return 1

    def _owner(self, name: str) -> str:
        return name[: len(self.name)]

    def _remove(self, path: str) -> int:
        try:
            self._system.unlink(path)
        except OSError:
            return 0
        return 1

    def _names(self, folder: str) -> list[str]:
        try:
            return self._system.names(self._namespace.folder(folder))
        except OSError:
            return []

    def _exists(self, path: str) -> bool:
        try:
            self._system.stat(path)
        except FileNotFoundError:
            return False
        return True

    def _path(self, name: str) -> str:
        return f"{self._namespace.folder(SESSIONS)}/{name}"
