"""Time of every backend against the best copy that moves as many bytes.

``timing`` has the clocks, ``measure`` the cases, ``peers`` the quantizers of other projects that are
installed, ``report`` the table, the record and the plot. Used by ``mxfp8-ops bench`` and by the scripts in
``benchmarks/``.
"""
