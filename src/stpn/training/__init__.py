"""The interface of trainers (`trainer`), the loop that drives them, checkpoints, algorithms.

`session.start(config)` trains a run, `session.resume(path)` goes on with one.
"""
