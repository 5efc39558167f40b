"""Sets a checkout up and takes the set-up back, with the standard library alone.

Every step is a value: what it changes, the inputs it depends on, whether its result is there, and how it is done. A
step is done again only if its inputs changed, and may be interrupted at any point.
"""
