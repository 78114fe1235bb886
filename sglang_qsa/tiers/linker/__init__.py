"""SGLang's external linker over the record store: device pages straight to disk.

`linker` is what SGLang loads by name, `device` reads and writes records in the device
pools, `tree` is the prefix tree that tells the linker which pages lie before a node.
"""
