"""The LMCache tier: SGLang's LMCache cache with every plane of this model.

`cache` is the tree cache, `connector` speaks to the daemon, `adapter` names what
is registered there, `health` and `canary` decide when the daemon may be used.
"""
