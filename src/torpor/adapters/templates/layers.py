"""Layers: what each step of a build made, kept per machine and named by all that decided it.

``<layers>/<key>/tree`` is either a whole tree or, where the kernel stacks trees, only what the step changed over its
parents; ``layer.json`` says which. A layer appears by one rename and never changes. The least recently used are
forgotten; one whose parents were is not used.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.adapters.templates import chamber, commands
from torpor.adapters.templates.running import BuildLog, run
from torpor.adapters.templates.workplace import remove_tree, workplace
from torpor.domain.errors import TorporError

LAYERS_MAX = 40
_DESCRIPTION_FILE = "layer.json"
_TREE = "tree"


@dataclass(frozen=True, slots=True)
class Layer:
    """A kept step. ``trees``: the lowest first; the first is whole. ``key``: 32 hex digits."""

    key: str
    trees: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step works: at ``root``, which ``options`` (if any) mount inside its own namespace."""

    root: Path
    options: str
    log: BuildLog


Work = Callable[[Place], Awaitable[None]]


def key_of(parent: str, inputs: Any) -> str:  # noqa: ANN401 - JSON values
    """The name of a step's layer: of its parent's name and of everything that it is made from."""
    return hashlib.sha256(json.dumps([parent, inputs], sort_keys=True).encode()).hexdigest()[:32]


class Layers:
    """The layers of one folder."""

    def __init__(self, folder: Path, log: BuildLog) -> None:
        self._folder = folder.resolve()
        self._log = log
        self._stacking: bool | None = None

    def kept(self, key: str) -> Layer | None:
        """The layer, if it and all below it are there; marks them as used."""
        try:
            described = json.loads((self._folder / key / _DESCRIPTION_FILE).read_bytes())
            trees = tuple(Path(tree) for tree in described["trees"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not all(tree.is_dir() for tree in trees):
            return None
        for tree in reversed(trees):  # a parent is never older than its child
            if tree.is_relative_to(self._folder):
                os.utime(tree.parent)
        return Layer(key, trees)

    async def step(self, parent: Layer | None, key: str, what: str, work: Work, *, fresh: bool = False) -> Layer:
        """The kept layer ``key``, else made by ``work`` on top of ``parent``. Nothing of a failure stays."""
        if not fresh and (kept := self.kept(key)):
            self._log.say(f"kept: {what}")
            return kept
        async with workplace(self._folder, key, self._log.say) as here:
            if not fresh and (kept := self.kept(key)):  # another builder made it while this one waited
                return kept
            self._log.say(what)
            here.mkdir(mode=0o700)
            whole = await self._work(parent, here, work)
            return self._keep(here, key, parent if not whole else None)

    async def _work(self, parent: Layer | None, here: Path, work: Work) -> bool:
        """True if the tree is whole."""
        tree = here / _TREE
        if parent is None:
            await work(Place(tree, "", self._log))
            return True
        if not await self._stacks():
            await self.unpack(parent, tree)
            await work(Place(tree, "", self._log))
            return True
        for name in (_TREE, "work", "root"):
            (here / name).mkdir(mode=0o755)
        shutil.copystat(parent.trees[-1], tree)
        options = chamber.overlay_options([str(each) for each in parent.trees], upper=tree, work=here / "work")
        await work(Place(here / "root", options, self._log))
        remove_tree(here / "work")
        (here / "root").rmdir()
        return False

    def _keep(self, here: Path, key: str, parent: Layer | None) -> Layer:
        target = self._folder / key
        layer = Layer(key, (*(parent.trees if parent else ()), target / _TREE))
        (here / _DESCRIPTION_FILE).write_text(json.dumps({"trees": [str(tree) for tree in layer.trees]}))
        if target.exists():
            remove_tree(target)
        here.rename(target)
        self._forget()
        return layer

    def _forget(self) -> None:
        kept = sorted(
            (entry for entry in self._folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")),
            key=lambda entry: entry.stat().st_mtime,
            reverse=True,
        )
        for old in kept[LAYERS_MAX:]:
            remove_tree(old)

    def drop(self, layer: Layer) -> None:
        """Forget it now; layers above it are not used any more."""
        for tree in layer.trees[-1:]:
            if tree.is_relative_to(self._folder):
                remove_tree(tree.parent)

    async def unpack(self, layer: Layer, target: Path) -> None:
        """Copy the whole tree of a layer to ``target``, which must not exist."""
        if len(layer.trees) == 1:
            await run(commands.copy_argv(layer.trees[0], target), self._log)
            return
        merged = target.parent / "merged"
        merged.mkdir()
        options = chamber.overlay_options([str(tree) for tree in layer.trees])
        await run(chamber.mounted_argv(merged, options, commands.copy_argv(merged, target)), self._log)
        merged.rmdir()

    async def _stacks(self) -> bool:
        if self._stacking is None:
            self._stacking = await self._probe()
        return self._stacking

    async def _probe(self) -> bool:
        """Whether the kernel stacks trees in this folder: it does not on some file systems, as in most containers."""
        here = self._folder / f".building-probe-{os.getpid()}"
        try:
            for name in ("lower", "upper", "work", "root"):
                await asyncio.to_thread((here / name).mkdir, parents=True)
            options = chamber.overlay_options([str(here / "lower")], upper=here / "upper", work=here / "work")
            argv = chamber.mounted_argv(here / "root", options, ("mkdir", str(here / "root/made")))
            await run(argv, self._log)
        except TorporError:
            return False
        else:
            return (here / "upper/made").is_dir()
        finally:
            remove_tree(here)
