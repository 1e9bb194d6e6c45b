"""The resources of one worker. One rule: opened in the order of declaration, closed in reverse, whatever goes wrong.

A factory is a plain or async function that returns the thing, or yields it and cleans up after the yield.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.definitions.definition import Resource


class Resources:
    """`async with Resources(app) as values:` gives them by name. `given` stand in for the app's own (in tests)."""

    def __init__(self, app: App, given: Mapping[str, Any] | None = None) -> None:
        self._app = app
        self._given = dict(given or {})
        self._stack = AsyncExitStack()
        unknown = sorted(set(self._given) - set(app.resources))
        if unknown:
            raise PipelineError(f"app {app.id!r} has no resource {', '.join(unknown)}; it has {_names(app)}")

    async def __aenter__(self) -> dict[str, Any]:
        """Open all. Where one cannot be opened, those before it are closed and its own error is raised."""
        values: dict[str, Any] = {}
        try:
            for name, resource in self._app.resources.items():
                values[name] = self._given[name] if name in self._given else await self._open(resource)
        except BaseException:
            await self._stack.aclose()
            raise
        return values

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _open(self, resource: Resource[Any]) -> Any:
        factory = resource.factory
        if inspect.isasyncgenfunction(factory):
            return await self._stack.enter_async_context(_async_once(factory, resource.name))
        if inspect.isgeneratorfunction(factory):
            return self._stack.enter_context(_once(factory, resource.name))
        made = factory()
        return await made if inspect.isawaitable(made) else made


@asynccontextmanager
async def _async_once(factory: Any, name: str) -> AsyncIterator[Any]:
    made = factory()
    value = await anext(made, _END)
    if value is _END:
        raise PipelineError(f"resource {name!r} yielded nothing; yield what the processors get, once")
    yield value
    if await anext(made, _END) is not _END:
        raise PipelineError(f"resource {name!r} yielded twice; yield once, clean up after it")


@contextmanager
def _once(factory: Any, name: str) -> Iterator[Any]:
    made = factory()
    value = next(made, _END)
    if value is _END:
        raise PipelineError(f"resource {name!r} yielded nothing; yield what the processors get, once")
    yield value
    if next(made, _END) is not _END:
        raise PipelineError(f"resource {name!r} yielded twice; yield once, clean up after it")


def _names(app: App) -> str:
    return ", ".join(app.resources) or "none"


_END = object()
