"""What holds a sibling's table: a checkpoint or a container."""

from __future__ import annotations

from engramctl.errors import EngramctlError
from engramctl.siblings.checkpoint import SiblingCheckpoint
from engramctl.siblings.container import PleContainer
from engramctl.source import Source

Opened = SiblingCheckpoint | PleContainer


def as_sibling(source: Source) -> Opened:
    """The source as what it is."""
    made: object = source
    if isinstance(made, (SiblingCheckpoint, PleContainer)):
        return made
    raise EngramctlError(str(source.path), "a sibling's checkpoint or container", source.profile.name)
