"""The prover: histories are drawn or recorded, run under faults, and compared with the declarations.

``check`` and ``recorded`` are the two ways in. ``driver`` delivers as badly as Lambda may, ``faults`` and ``handlers``
fail, ``faults`` also draws the choices and shortens a failing run, ``invariants`` checks the store after every call,
and ``oracle`` computes the right rows.
"""
