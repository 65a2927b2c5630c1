"""Every backend of this machine against the reference on the CPU, byte by byte.

``runner.make_checks`` lists what is compared, ``runner.run`` does it and never stops at a failure,
``compare`` finds the first differing block, and ``deviations`` knows the blocks in which a backend
may differ because docs/numerics.md says so.
"""
