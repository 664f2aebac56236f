"""The version of the installed distribution, written once: in its metadata."""

from importlib.metadata import version

__version__ = version("steintrain")
