"""What a template stands on: the distribution, a built-in template's packages, another template's tree, an archive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torpor.adapters.templates import chamber
from torpor.adapters.templates.layers import Layer, Layers, Place, key_of
from torpor.adapters.templates.running import run
from torpor.adapters.templates.spec import DEBIAN, TEMPLATES, TemplateSpec, base_env
from torpor.adapters.templates.steps import Steps
from torpor.domain.errors import EngineError, NotFound, Unsupported

_PYTHON_MIN = (3, 11)
# Exit statuses of the question below.
_TOO_OLD = 3
_ASK_PYTHON = f"""
for python in /usr/bin/python3 /usr/local/bin/python3; do
    [ -x "$python" ] || continue
    "$python" -I -S -c 'import sys; sys.exit(sys.version_info < {_PYTHON_MIN})' || exit {_TOO_OLD}
    [ "$python" = /usr/bin/python3 ] || ln -s "$python" /usr/bin/python3
    exit 0
done
exit {_TOO_OLD}
"""


@dataclass(frozen=True, slots=True)
class Ground:
    """A base. ``env``, ``warmup``, ``user``, ``workdir``: what it gives to those that stand on it.

    ``inputs``: JSON, all that decides its tree. ``tree``: a finished tree below all, used where it lies. ``fill``:
    writes into the tree (over ``tree``, if there is one). ``of_this_host``: it came of this host's apt sources.
    ``kept``: what it fills may be kept among the layers for other builds.
    """

    inputs: object
    tree: Path | None = None
    fill: Callable[[Place], Awaitable[None]] | None = None
    what: str = ""
    env: Mapping[str, str] = field(default_factory=base_env)
    warmup: str = ""
    user: str = "root"
    workdir: str = ""
    of_this_host: bool = True
    kept: bool = True


async def lay_ground(
    spec: TemplateSpec, steps: Steps, layers: Layers, ground: Ground | None
) -> tuple[Layer, Ground, tuple[str, ...]]:
    """The base's layer, what it gives, and which of ``spec.packages`` are still to be installed.

    Raises: NotFound for a base that is not known; Unsupported if there is no fit Python in it.
    """
    if ground is not None:
        return await _layer_of(ground, layers), ground, spec.packages
    if spec.base == DEBIAN:
        return await steps.distribution(spec.packages), Ground("distribution"), ()
    below = TEMPLATES.get(spec.base)
    if below is None:
        raise NotFound(
            f"cannot find the base {spec.base!r}: give {DEBIAN}, {', '.join(sorted(TEMPLATES))}, a template of this "
            "home by name or digest, oci:FILE or session:ID",
            field="base",
        )
    layer, under, packages = await lay_ground(below, steps, layers, None)
    layer = await steps.onto(layer, replace(below, packages=packages))
    given = Ground(
        below.name,
        env={**under.env, **below.env},
        warmup=under.warmup + below.warmup,
        user=below.user,
        workdir=below.workdir,
    )
    return layer, given, spec.packages


async def _layer_of(ground: Ground, layers: Layers) -> Layer:
    below = Layer(key_of("", ["tree", str(ground.tree)]), (ground.tree,)) if ground.tree else None
    if ground.fill is None:
        assert below is not None, "a ground has a tree or makes one"
        return below
    fill = ground.fill

    async def work(place: Place) -> None:
        await fill(place)
        await _require_python(place)

    return await layers.step(below, key_of(below.key if below else "", ground.inputs), ground.what, work)


async def _require_python(place: Place) -> None:
    """The guest agent is run by the tree's own Python; one in /usr/local is made known as /usr/bin/python3."""
    argv = chamber.inside_argv(place.root, place.options, ("/bin/sh", "-c", _ASK_PYTHON))
    try:
        await run(argv, place.log, apart=True, shown=("looking for Python",))
    except EngineError as error:
        wanted = ".".join(str(part) for part in _PYTHON_MIN)
        raise Unsupported(
            f"cannot use this base: it has no Python {wanted} or newer at /usr/bin/python3 or /usr/local/bin/python3, "
            "which the guest agent is run by; start from an image that has one (python:3.12-slim, debian:bookworm "
            "with python3)",
            field="base",
            log_tail=error.details.get("log_tail", ""),
        ) from error
