"""Running source in a namespace that stays: by IPython where it can be imported, else by Python alone.

Both answer ``{"result"?, "error"?, "execution_count"}``; nothing that user code does is an exception here, except
KeyboardInterrupt in the instant around a run.
"""

from __future__ import annotations

import ast
import base64
import builtins
import importlib.util
import linecache
import os
import re
import resource
import sys
import traceback
from collections.abc import Callable, Mapping
from types import CodeType, ModuleType, TracebackType
from typing import Any, Protocol

Display = Callable[[dict[str, Any]], None]
Answer = dict[str, Any]

# Beyond this IPython's line-wise transformation takes minutes and gigabytes; such source runs as plain Python.
LARGE_SOURCE_BYTES = 512 * 1024
TEXT_CHARS_MAX = 4 * 1024 * 1024
UNADORNED = frozenset({int, bool, float, str})  # shown as text only, unless a user has registered more
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Evaluator(Protocol):
    """Runs source and answers."""

    def run(self, source: str, *, silent: bool = False) -> Answer:
        """Run it to its end; ``silent``: without counting it.

        Output goes to the process's own streams, display data to the callback.
        """
        ...


def printable(text: str) -> str:
    """``text`` without lone surrogates, so that any JSON or UTF-8 encoder takes it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def bundle_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """A mime bundle fit for JSON: bytes as base64, what JSON cannot hold as its repr."""
    bundle: dict[str, Any] = {}
    for mime, content in data.items():
        if isinstance(content, bytes):
            bundle[mime] = base64.b64encode(content).decode("ascii")
        elif isinstance(content, str):
            bundle[mime] = printable(content)
        else:
            bundle[mime] = content if _is_json(content) else repr(content)
    bundle.setdefault("text/plain", "")
    return bundle


def _is_json(content: object) -> bool:
    if isinstance(content, dict):
        return all(isinstance(key, str) and _is_json(value) for key, value in content.items())
    if isinstance(content, list):
        return all(_is_json(value) for value in content)
    return content is None or isinstance(content, str | int | float | bool)


def error_of(kind: type[BaseException], error: BaseException, shown: str) -> dict[str, str]:
    """An exception as a value."""
    try:
        value = str(error)
    except Exception as nested:  # noqa: BLE001 - __str__ is user code
        value = f"<unprintable {kind.__name__}: {type(nested).__name__}>"
    return {"name": kind.__name__, "value": printable(value), "traceback": printable(_ANSI.sub("", shown))}


class PlainEvaluator:
    """Python alone: the last expression's value is shown by repr."""

    def __init__(self, namespace: dict[str, Any], show: Callable[[object], dict[str, Any]] | None = None) -> None:
        self._namespace = namespace
        self._show = show or (lambda value: {"text/plain": repr(value)[:TEXT_CHARS_MAX]})
        self.execution_count = 0

    def run(self, source: str, *, silent: bool = False) -> Answer:
        """See Evaluator."""
        self.execution_count += not silent
        answer: Answer = {"execution_count": self.execution_count}
        filename = f"<burst {self.execution_count}>"
        if len(source) < LARGE_SOURCE_BYTES:
            linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        try:
            statements, last = _compile(source, filename)
            exec(statements, self._namespace)  # noqa: S102 - running what we are given is the purpose
            if last is not None:
                value = eval(last, self._namespace)  # noqa: S307 - as above
                if value is not None:
                    self._namespace["_"] = value
                    answer["result"] = bundle_of(self._show(value))
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is its result
            answer["error"] = error_of(type(error), error, _shown(error, filename))
        return answer


def _compile(source: str, filename: str) -> tuple[CodeType, CodeType | None]:
    """The statements, and the last one apart if it is an expression."""
    with _MemoryGuard(len(source)):
        tree = ast.parse(source, filename)
        last = None
        if tree.body and isinstance(expression := tree.body[-1], ast.Expr):
            tree.body.pop()
            last = compile(ast.Expression(expression.value), filename, "eval")
        return compile(tree, filename, "exec"), last


class _MemoryGuard:
    """Turns running out of memory while large source is compiled into MemoryError.

    A syntax tree takes several hundred times its text, and the sandbox's own limit would kill everything in it.
    """

    def __init__(self, source_chars: int) -> None:
        self._large = source_chars >= LARGE_SOURCE_BYTES
        self._before = resource.getrlimit(resource.RLIMIT_AS)

    def __enter__(self) -> None:
        if self._large and (available := _available_bytes()) is not None:
            with open("/proc/self/statm", "rb") as file:
                used = int(file.read().split()[0]) * resource.getpagesize()
            soft, hard = used + available * 3 // 5, self._before[1]
            resource.setrlimit(resource.RLIMIT_AS, (soft if hard < 0 else min(soft, hard), hard))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self._before)


def _available_bytes() -> int | None:
    with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _shown(error: BaseException, filename: str) -> str:
    """A traceback that begins in user code."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != filename:
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except Exception as nested:  # noqa: BLE001 - exceptions of user code may break while they are shown
        return f"{type(error).__name__}: <traceback cannot be shown: {type(nested).__name__}>\n"


def _has_semicolon(cells: list[str]) -> bool:
    return bool(cells) and ";" in cells[-1]


def _text_alone(value: object, formatters: Mapping[str, Any]) -> str | None:
    """The text of a value of a plain type; None if the type is another, or a user has given it one more form."""
    kind = type(value)
    if kind not in UNADORNED:
        return None
    for mime, formatter in formatters.items():
        names = formatter.deferred_printers
        if mime != "text/plain" and (kind in formatter.type_printers or (kind.__module__, kind.__name__) in names):
            return None
    text: str | None = formatters["text/plain"](value)
    return text


class _Frugal:
    """What IPython's display hook need not do for a small value. To be laid over it."""

    shell: Any
    cull_fraction: float

    def quiet(self) -> bool:
        """Whether a semicolon ends the cell: IPython takes all of it apart to see, here one without any is not."""
        return _has_semicolon(self.shell.history_manager.input_hist_parsed) and super().quiet()  # type: ignore[misc]

    def compute_format_data(self, result: object) -> Any:  # noqa: ANN401 - IPython's two dictionaries
        """The text alone of what has no other form; asking each of ten formatters takes a third of a burst."""
        text = _text_alone(result, self.shell.display_formatter.formatters)
        return ({"text/plain": text}, {}) if text is not None else super().compute_format_data(result)  # type: ignore[misc]

    def cull_cache(self) -> None:
        """Forget the oldest values of Out, without the warning that IPython writes into the user's output."""
        kept = self.shell.user_ns["_oh"]
        for number in sorted(kept)[: max(2, int(len(kept) * self.cull_fraction))]:
            self.shell.user_ns.pop(f"_{number}", None)
            del kept[number]


def _ipython_shell(display: Display) -> Any:  # noqa: ANN401 - IPython has no types
    """An InteractiveShell that shows nothing by itself: values, display data and tracebacks come to us."""
    # Only here: a template need not have IPython, and then nothing of it may be imported.
    from IPython.core.displayhook import DisplayHook  # noqa: PLC0415
    from IPython.core.displaypub import DisplayPublisher  # noqa: PLC0415
    from IPython.core.interactiveshell import InteractiveShell  # noqa: PLC0415
    from traitlets import Type  # type: ignore[import-not-found]  # noqa: PLC0415
    from traitlets.config import Config  # type: ignore[import-not-found]  # noqa: PLC0415

    class Hook(_Frugal, DisplayHook):  # type: ignore[misc]
        """Keeps the last value's mime bundle."""

        bundle: dict[str, Any] | None = None

        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: dict[str, Any], md_dict: object = None) -> None:
            del md_dict
            type(self).bundle = bundle_of(format_dict)

        def finish_displayhook(self) -> None:
            pass

    class Publisher(DisplayPublisher):  # type: ignore[misc]
        """Hands display data on."""

        def publish(self, data: dict[str, Any], *_: object, **__: object) -> None:
            display(bundle_of(data))

        def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001 - IPython's signature
            pass

    class Shell(InteractiveShell):  # type: ignore[misc]
        """Keeps tracebacks instead of printing them."""

        displayhook_class = Type(Hook)
        display_pub_class = Type(Publisher)
        shown = ""

        def _showtraceback(self, etype: object, evalue: object, stb: list[str]) -> None:
            del etype, evalue
            self.shown = self.InteractiveTB.stb2text(stb)

        def take_bundle(self) -> dict[str, Any] | None:
            bundle, Hook.bundle = Hook.bundle, None
            return bundle

        def init_syntax_highlighting(self, changes: object = None) -> None:
            """Skipped: nothing is coloured, and the highlighter costs memory in every snapshot."""

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.cache_size = 100  # old values in Out would otherwise be kept for ever
    shell = Shell.instance(config=config)
    shell.system = shell.system_raw  # children write to our own descriptors, which the agent reads
    return shell


class IPythonEvaluator:
    """IPython: magics, ``!commands``, top-level await, rich display."""

    def __init__(self, display: Display) -> None:
        self._shell = _ipython_shell(display)
        self._plain = PlainEvaluator(self._shell.user_ns, self._format)
        if importlib.util.find_spec("matplotlib_inline") and importlib.util.find_spec("matplotlib"):
            os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")

    def run(self, source: str, *, silent: bool = False) -> Answer:
        """See Evaluator."""
        shell = self._shell
        if len(source) >= LARGE_SOURCE_BYTES:
            self._plain.execution_count = shell.execution_count - 1
            answer = self._plain.run(source)
            shell.execution_count += 1
            return answer
        shell.shown = ""
        answer = {"execution_count": shell.execution_count}
        outcome = shell.run_cell(source, store_history=not silent)
        bundle = shell.take_bundle()
        error = outcome.error_before_exec or outcome.error_in_exec
        if error is not None:
            answer["error"] = error_of(type(error), error, shell.shown or f"{type(error).__name__}: {error}\n")
        elif bundle is not None:
            answer["result"] = bundle
        return answer

    def _format(self, value: object) -> dict[str, Any]:
        data, _ = self._shell.display_formatter.format(value)
        return dict(data)


def make_evaluator(display: Display) -> Evaluator:
    """IPython's evaluator if it can be had, else the plain one with a ``display`` of its own."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.path[0] = ""
    if importlib.util.find_spec("IPython") is not None:
        try:
            return IPythonEvaluator(display)
        except Exception as error:  # noqa: BLE001 - a broken IPython must not cost the session its Python
            print(f"IPython cannot be used, plain Python instead: {error!r}", file=sys.stderr)

    def show(*values: object) -> None:
        for value in values:
            display({"text/plain": printable(repr(value))})

    main.__dict__["display"] = show
    return PlainEvaluator(main.__dict__)
