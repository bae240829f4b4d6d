"""The prover: histories are drawn or recorded, run under faults, and compared with what the declarations say.

``check`` and ``recorded`` are the two ways in. ``driver`` delivers as badly as Lambda may, ``faults`` and ``handlers``
fail, ``choices`` draws what fails where and makes a failing run shorter, ``invariants`` looks on after every call, and
``oracle`` says which rows are right.
"""
