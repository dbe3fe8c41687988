"""Beyond one machine, on Ray (extra `ray`): sweeps, search, RLlib, data-parallel training.

Nothing outside this package imports ray, and nothing here does before it is used.
"""
