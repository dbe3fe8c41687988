"""Training: the seam (`trainer`), the loop, checkpoints, and the trainers of the paper's tasks.

`session.start(config)` trains a run, `session.resume(path)` goes on with one.
"""
