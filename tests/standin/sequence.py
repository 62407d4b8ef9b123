"""Runs sequences of driver calls, each in its own process, and prints the driver's answers.

    python -m standin.sequence LIBRARY          one JSON list of calls in a line, one answer out

Handles and addresses differ from run to run. So a call names what it uses by a number that picks
one of the things made so far, and the answer tells of a pointer only what must be the same: whether
it was written, and how it is aligned. A thing that was freed is picked no more (its address may be
another's by then); freeing twice is a call of its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from standin.driver import UNTOUCHED, Answer
from standin.pages import LIVE, Limits, Usage, bytes_in, map_page
from standin.worker import Worker

UNKNOWN = 0x7DEAD0000
PAGE = 2 << 20
NOT_READY = 600
HOST = 15  # the entry of the ledger for memory of the host

# Attributes of pointers, by their numbers in cuda.h: all but tokens for other devices and whether
# there are IPC handles.
ATTRIBUTES = [1, 2, 3, 4, 6, 7, 8, 9, *range(11, 22)]
CONTEXT_OF = 1
ADDRESSES = {3, 11, 19}
IDS = {7, 20}


class Sequence:
    """The things made so far, by kind, and the calls on them."""

    def __init__(self, driver: Worker) -> None:
        self.driver = driver
        self.things: dict[str, list[tuple[int, int]]] = {}  # kind -> (value, its context)
        self.mappings: list[tuple[int, int]] = []
        self.retained = 0
        self.ids: dict[int, list[int]] = {}  # attribute -> ids in the order they were seen

    def pick(self, kind: str, number: int) -> int:
        things = self.things.get(kind)
        return things[number % len(things)][0] if things else UNKNOWN

    def keep(self, kind: str, answer: Answer) -> Answer:
        """Remember what was made. Returns the answer without its address."""
        code, value, *rest = answer
        if code == 0 and value not in {0, UNTOUCHED}:
            self.things.setdefault(kind, []).append((value, self.driver.current()[1]))
        told = value if value in {0, UNTOUCHED} else (value & -value) >= 512
        return [code, int(told), *rest]

    def drop(self, kind: str, value: int) -> None:
        things = self.things.get(kind, [])
        self.things[kind] = [thing for thing in things if thing[0] != value]

    def forget_context(self, context: int) -> None:
        for kind in ("pointer", "array", "mipmap", "stream", "event", "graph", "executable"):
            things = self.things.get(kind, [])
            self.things[kind] = [thing for thing in things if thing[1] != context]
        self.driver.kernels.pop(context, None)

    def end(self, kind: str, number: int, call: str, *more: int) -> Answer:
        """Free a thing twice."""
        value = self.pick(kind, number)
        call_it = getattr(self.driver, call)
        first = call_it(value, *more)
        if first[0] == 0:
            self.drop(kind, value)
        return [*first, *call_it(value, *more)]

    # --- contexts

    def create_context(self) -> Answer:
        return self.keep("context", self.driver.create_context())[:1]

    def destroy_context(self, number: int) -> Answer:
        context = self.pick("context", number)
        mine = [value for value, of in self.things.get("pointer", []) if of == context]
        answer = self.driver.destroy_context(context)
        if answer[0] == 0:
            self.drop("context", context)
            answer += [self.driver.free(pointer)[0] for pointer in mine[:1]]
            self.forget_context(context)
        return answer

    def push(self, number: int) -> Answer:
        return self.driver.push(self.pick("context", number))

    def pop(self) -> Answer:
        return self.driver.pop()[:1]

    def set_current(self, number: int) -> Answer:
        return self.driver.set_current(self.pick("context", number) if number else 0)

    def init(self) -> Answer:
        return self.driver.init()

    def current(self) -> Answer:
        code, context = self.driver.current()
        known = [value for value, _ in self.things.get("context", [])]
        where = known.index(context) if context in known else -1 - (context == 0)
        return [code, where, *self.driver.device()]

    def retain(self) -> Answer:
        code, context = self.driver.retain()
        if code == 0:
            self.retained += 1
            self.driver.set_current(context)
        return [code, *self.driver.primary_state()]

    def release(self) -> Answer:
        _, context = self.driver.retain()
        self.driver.release()
        answer = self.driver.release()
        state = self.driver.primary_state()
        if state[2] == 0:
            self.forget_context(context)
        return [*answer, *state]

    def reset(self) -> Answer:
        _, context = self.driver.retain()
        answer = [*self.driver.reset(), *self.driver.primary_state()]
        self.forget_context(context)
        return answer

    def synchronize(self) -> Answer:
        return self.driver.synchronize()

    def total_is_told(self) -> Answer:
        return self.driver.info()[:1] + self.driver.total(0)[:1] + self.driver.total(7)[:1]

    # --- pointers

    def alloc(self, size: int) -> Answer:
        return self.keep("pointer", self.driver.alloc(size))

    def alloc_pitch(self, width: int, height: int, element: int) -> Answer:
        return self.keep("pointer", self.driver.alloc_pitch(width, height, element))

    def alloc_managed(self, size: int, flags: int) -> Answer:
        return self.keep("pointer", self.driver.alloc_managed(size, flags))

    def alloc_async(self, size: int, stream: int) -> Answer:
        return self.keep("pooled", self.driver.alloc_async(size, self._stream(stream)))

    def alloc_from(self, size: int, pool: int, stream: int) -> Answer:
        handle = self.pick("pool", pool)
        return self.keep("pooled", self.driver.alloc_from(handle, size, self._stream(stream)))

    def free(self, number: int) -> Answer:
        return self.end("pointer", number, "free")

    def free_pooled(self, number: int) -> Answer:
        return self.end("pooled", number, "free")

    def free_async(self, number: int, stream: int) -> Answer:
        return self.end("pooled", number, "free_async", self._stream(stream))

    def free_plain_async(self, number: int) -> Answer:
        return self.end("pointer", number, "free_async", 0)

    def free_inside(self, number: int) -> Answer:
        return self.driver.free(self.pick("pointer", number) + 256)

    def free_nothing(self) -> Answer:
        return [*self.driver.free(0), *self.driver.free(UNKNOWN), *self.driver.free_async(0)]

    def touch(self, number: int, value: int) -> Answer:
        pointer = self.pick("pointer", number)
        code, base, size = self.driver.range_of(pointer)
        if code:
            return [code, base == UNTOUCHED, size]
        answer = [code, size, *self.driver.fill(pointer, value, min(size, 64))]
        return [*answer, *self.driver.read(pointer, min(size, 8))]

    def ask(self, number: int, where: int) -> Answer:
        """All questions about a pointer, inside its allocation and beside it."""
        pointer = self.pick("pointer", number)
        size = self.driver.range_of(pointer)[2]
        at = pointer + [0, 1, size // 2, size - 1, size, -1][where % 6]
        code, base, told = self.driver.range_of(at)
        answer = [code, told, base if base == UNTOUCHED else base - pointer]
        for which in ATTRIBUTES:
            code, value = self.driver.attribute_of(at, which)
            answer += [code, self._plain(which, value, pointer) if code == 0 else value]
        code, *values = self.driver.attributes_of(at, ATTRIBUTES)
        plain = [self._plain(*one, pointer) for one in zip(ATTRIBUTES, values, strict=True)]
        return [*answer, code, *plain]

    def _plain(self, which: int, value: int, pointer: int) -> int:
        """An attribute without what differs between two processes."""
        if which == CONTEXT_OF and value:
            known = [context for context, _ in self.things.get("context", [])]
            return known.index(value) if value in known else -1
        if which in IDS and value:
            seen = self.ids.setdefault(which, [])
            if value not in seen:
                seen.append(value)
            return seen.index(value)
        return value - pointer if which in ADDRESSES and value else value

    def misuse(self, number: int) -> Answer:
        """Calls that are for memory of other kinds."""
        pointer = self.pick("pointer", number)
        pages = pointer // PAGE * PAGE
        return [
            *self.driver.retain_physical(pointer)[:1],
            *self.driver.unmap(pages, PAGE),
            *self.driver.set_access(pages, PAGE),
            *self.driver.free_addresses(pages, PAGE),
            *self.driver.access_of(pointer),
            *self.driver.map(pages, PAGE, self.pick("physical", number)),
        ]

    def set_sync(self, number: int, value: int) -> Answer:
        pointer = self.pick("pointer", number)
        return [*self.driver.set_sync_memops(pointer, value), *self.driver.attribute_of(pointer, 6)]

    # --- pools, streams, events

    def create_pool(self) -> Answer:
        return self.keep("pool", self.driver.create_pool())[:1]

    def default_pool(self) -> Answer:
        code, pool = self.driver.default_pool()
        if code == 0:
            self.drop("pool", pool)
            self.things.setdefault("pool", []).append((pool, 0))
        return [code]

    def destroy_pool(self, number: int) -> Answer:
        return self.end("pool", number, "destroy_pool")

    def trim_pool(self, number: int, keep: int) -> Answer:
        return self.driver.trim_pool(self.pick("pool", number), keep)

    def pool_figures(self, number: int) -> Answer:
        pool = self.pick("pool", number)
        return [
            figure for what in (4, 5, 6, 7, 8) for figure in self.driver.pool_attribute(pool, what)
        ]

    def set_threshold(self, number: int, size: int) -> Answer:
        return self.driver.set_pool_attribute(self.pick("pool", number), 4, size)

    def use_pool(self, number: int) -> Answer:
        pool = self.pick("pool", number)
        answer = self.driver.set_device_pool(pool)
        return [*answer, self.driver.device_pool()[1] == pool]

    def create_stream(self) -> Answer:
        return self.keep("stream", self.driver.create_stream())[:1]

    def destroy_stream(self, number: int) -> Answer:
        return self.end("stream", number, "destroy_stream")

    def synchronize_stream(self, number: int) -> Answer:
        return self.driver.synchronize_stream(self._stream(number))

    def create_event(self) -> Answer:
        return self.keep("event", self.driver.create_event())[:1]

    def record_event(self, number: int, stream: int) -> Answer:
        return self.driver.record_event(self.pick("event", number), self._stream(stream))

    def synchronize_event(self, number: int) -> Answer:
        return self.driver.synchronize_event(self.pick("event", number))

    def destroy_event(self, number: int) -> Answer:
        return self.end("event", number, "destroy_event")

    def _stream(self, number: int) -> int:
        """Zero is the default stream."""
        return self.pick("stream", number) if number else 0

    # --- physical memory

    def create_physical(self, size: int) -> Answer:
        return self.keep("physical", self.driver.create_physical(size))[:1]

    def release_physical(self, number: int) -> Answer:
        value = self.pick("physical", number)
        answer = self.driver.release_physical(value)
        if answer[0] == 0:
            self._drop_one_handle(value)
        return answer

    def map(self, number: int, size: int) -> Answer:
        code, address = self.driver.reserve_addresses(size)
        if code:
            return [code]
        answer = self.driver.map(address, size, self.pick("physical", number))
        if answer[0] == 0:
            self.mappings.append((address, size))
            return [0, *answer]
        return [0, *answer, *self.driver.free_addresses(address, size)]

    def map_twice_side_by_side(self, number: int, other: int) -> Answer:
        """Map two handles in one range, and unmap both by one call."""
        code, address = self.driver.reserve_addresses(2 * PAGE)
        if code:
            return [code]
        first = self.driver.map(address, PAGE, self.pick("physical", number))
        second = self.driver.map(address + PAGE, PAGE, self.pick("physical", other))
        answer = [*first, *second, *self.driver.unmap(address, 2 * PAGE)]
        if answer[-1]:
            answer += self.driver.unmap(address, PAGE) + self.driver.unmap(address + PAGE, PAGE)
        return [*answer, *self.driver.free_addresses(address, 2 * PAGE)]

    def unmap(self, number: int) -> Answer:
        if not self.mappings:
            return self.driver.unmap(UNKNOWN // PAGE * PAGE, PAGE)
        address, size = self.mappings.pop(number % len(self.mappings))
        answer = [*self.driver.unmap(address, size), *self.driver.unmap(address, size)]
        return [*answer, *self.driver.free_addresses(address, size)]

    def unmap_part(self, number: int) -> Answer:
        if not self.mappings:
            return []
        address, size = self.mappings[number % len(self.mappings)]
        return self.driver.unmap(address, size // 2)

    def retain_physical(self, number: int) -> Answer:
        if not self.mappings:
            return self.driver.retain_physical(UNKNOWN)[:1]
        address, _ = self.mappings[number % len(self.mappings)]
        code, handle = self.driver.retain_physical(address)
        if code == 0:
            self.things.setdefault("physical", []).append((handle, 0))
        return [code]

    def _drop_one_handle(self, value: int) -> None:
        things = self.things["physical"]
        at = next(index for index, thing in enumerate(things) if thing[0] == value)
        del things[at]

    # --- arrays

    def create_array(self, width: int, height: int, channels: int) -> Answer:
        return self.keep("array", self.driver.create_array(width, height, 0x20, channels))[:1]

    def create_array3d(self, width: int, height: int, depth: int) -> Answer:
        return self.keep("array", self.driver.create_array3d(width, height, depth))[:1]

    def create_mipmap(self, width: int, height: int, levels: int) -> Answer:
        return self.keep("mipmap", self.driver.create_mipmap(width, height, levels))[:1]

    def destroy_array(self, number: int) -> Answer:
        return self.end("array", number, "destroy_array")

    def destroy_mipmap(self, number: int) -> Answer:
        return self.end("mipmap", number, "destroy_mipmap")

    # --- work

    def launch(self, symbol: str, stream: int) -> Answer:
        """Launch a kernel of the current context that touches no memory, by one entry point."""
        context = self.driver.current()[1]
        if context and context not in self.driver.kernels:
            self.driver.load_kernels()
        return self.driver.spin_by(symbol, self._default_or(stream))

    def fill_async(self, symbol: str, number: int, stream: int) -> Answer:
        pointer = self.pick("pointer", number)
        return self.driver.fill_by(symbol, pointer, self._default_or(stream))

    def create_blocking_stream(self) -> Answer:
        return self.keep("stream", self.driver.create_stream(0))[:1]

    def wait_event(self, number: int, stream: int) -> Answer:
        return self.driver.wait_event(self.pick("event", number), self._default_or(stream))

    def query_stream(self, stream: int) -> Answer:
        """Whether it is done already depends on timing, so the answer leaves it out."""
        code = self.driver.query_stream(self._default_or(stream))[0]
        return [0 if code == NOT_READY else code]

    def begin_capture(self, stream: int, mode: int) -> Answer:
        return self.driver.begin_capture(self._default_or(stream), mode)

    def end_capture(self, stream: int) -> Answer:
        code, graph = self.driver.end_capture(self._default_or(stream))
        if code or not graph:
            return [code, bool(graph)]
        self.things.setdefault("graph", []).append((graph, self.driver.current()[1]))
        return [code, *self.driver.node_types(graph)]

    def instantiate(self, number: int) -> Answer:
        return self.keep("executable", self.driver.instantiate(self.pick("graph", number)))[:1]

    def launch_graph(self, number: int, stream: int) -> Answer:
        executable = self.pick("executable", number)
        return self.driver.launch_graph(executable, self._default_or(stream))

    def destroy_executable(self, number: int) -> Answer:
        return self.end("executable", number, "destroy_executable")

    def _default_or(self, number: int) -> int:
        """Zero, one and two are the default streams by all their handles."""
        return number if number <= 2 else self.pick("stream", number - 3)

    # --- the end

    def give_all_back(self) -> None:
        """Free whatever is left, so that nothing can be charged any more."""
        for address, size in self.mappings:
            self.driver.unmap(address, size)
        for handle, _ in self.things.get("physical", []):
            self.driver.release_physical(handle)
        self.driver.start()
        self.driver.synchronize()
        for pointer, _ in self.things.get("pooled", []):
            self.driver.free(pointer)
        for pool, _ in self.things.get("pool", []):
            self.driver.trim_pool(pool)
            self.driver.destroy_pool(pool)
        self.driver.trim_pool(self.driver.default_pool()[1])
        for context, _ in self.things.get("context", []):
            self.driver.destroy_context(context)
        self.driver.reset()
        while self.driver.release()[0] == 0:
            pass


def held_by_us() -> int | None:
    """What the grant's ledger charges this process; None: there is no grant."""
    grant, _, _ = os.environ.get("ALIQUOT_GRANT", "").partition("#")
    if not grant:
        return None
    limits, usage = map_page(Path(grant, "limits"), Limits), map_page(Path(grant, "usage"), Usage)
    return sum(
        bytes_in(usage.slices[part].entries[slot].held)
        for part in (0, HOST)
        for slot, process in enumerate(limits.processes)
        if process.state == LIVE and process.pid == os.getpid()
    )


def run(driver: Worker, calls: list[list[Any]]) -> dict[str, Any]:
    sequence = Sequence(driver)
    answers = [getattr(sequence, name)(*arguments) for name, *arguments in calls]
    sequence.give_all_back()
    return {"answers": answers, "left": held_by_us()}


def in_child(driver: Worker, calls: list[list[Any]]) -> dict[str, Any]:
    out, into = os.pipe()
    if child := os.fork():
        os.close(into)
        with os.fdopen(out) as answers:
            told = answers.read()
        _, status = os.waitpid(child, 0)
        return dict(json.loads(told)) if told else {"died": status}
    with os.fdopen(into, "w") as answers:
        answers.write(json.dumps(run(driver, calls)))
    os._exit(0)


def main() -> None:
    driver = Worker(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(in_child(driver, json.loads(line))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
