"""Short-Term Plasticity Neurons for PyTorch."""

__version__ = "0.1.0"
