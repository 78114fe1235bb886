"""The durable tier: page and checkpoint records as files of one directory.

`directory` is the store; `record` is the format of a file and `files` reads and
writes one; `namespace` keeps configurations apart; `lookup` finds what can be served,
from memory; `references` says what must stay, `gc` removes the rest; `session` tells
the living from the dead; `cli` is `sglang-qsa store`.

Nothing is read that is not named by a commit entry, nothing is delivered whose
checksum was not recomputed, and no process ever waits for another one: a rename is
the only commit there is.
"""
