"""engramctl: which row of a hashed n-gram memory is it, and what does it do?"""

from __future__ import annotations

__version__ = "0.1.0"
