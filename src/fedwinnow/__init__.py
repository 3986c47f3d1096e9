"""fedwinnow: federated learning with noisy labels."""

from fedwinnow.version import __version__

__all__ = ["__version__"]
