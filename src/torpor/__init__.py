"""torpor: stateful sandbox sessions for AI agents that survive their waits.

``Client`` and ``AsyncClient`` come from here. They are loaded when asked for: the guest and the server need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torpor.apps.sdk import AsyncClient, AsyncSession, Client, Result, Session
    from torpor.domain.errors import TorporError

__version__ = "0.1.0"
__all__ = ["AsyncClient", "AsyncSession", "Client", "Result", "Session", "TorporError", "__version__"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'torpor' has no attribute {name!r}")
    if name == "TorporError":
        from torpor.domain import errors  # noqa: PLC0415 - see above

        return errors.TorporError
    from torpor.apps import sdk  # noqa: PLC0415 - see above

    return getattr(sdk, name)
