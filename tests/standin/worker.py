"""Work for the GPU by every call, whose effect the test can see.

A kernel of this program writes a word in pinned memory, which the program then reads with no call
of the driver at all: looking changes nothing. Nothing but the standard library: it runs inside
tenants.
"""

from __future__ import annotations

import ctypes as c
import functools
import threading
from collections.abc import Callable

from standin.driver import Answer, Driver

WORDS = 4096
DEVICEMAP = 2
LEGACY, PER_THREAD = 1, 2
GLOBAL, THREAD_LOCAL, RELAXED = range(3)

_U64 = ".param .u64 {}"
_KERNELS = {
    "aliquot_spin": 1,
    "aliquot_set": 2,
    "aliquot_wait": 2,
    "aliquot_fault": 0,
}


def _ptx() -> bytes:
    text = ".version 7.0\n.target sm_70\n.address_size 64\n"
    for name, count in _KERNELS.items():
        listed = ", ".join(_U64.format(f"{name}_{index}") for index in range(count))
        text += f".visible .entry {name}({listed})\n{{\n    ret;\n}}\n"
    return text.encode()


class _Shape(c.Structure):
    """The first fields of every structure that describes a launch, for a grid of one thread."""

    _fields_ = (
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared", c.c_uint),
    )


class _Config(c.Structure):
    _fields_ = (
        ("shape", _Shape),
        ("stream", c.c_void_p),
        ("attributes", c.c_void_p),
        ("count", c.c_uint),
    )


class _Node(c.Structure):
    _fields_ = (
        ("function", c.c_void_p),
        ("shape", _Shape),
        ("parameters", c.c_void_p),
        ("extra", c.c_void_p),
        ("kernel", c.c_void_p),
        ("context", c.c_void_p),
    )


class _OnDevice(c.Structure):
    _fields_ = (
        ("function", c.c_void_p),
        ("shape", _Shape),
        ("stream", c.c_void_p),
        ("parameters", c.c_void_p),
    )


_ONE = _Shape((1, 1, 1), (1, 1, 1), 0)
_GRID = (1, 1, 1, 1, 1, 1, 0)


def _arguments(*values: int) -> c.Array[c.c_void_p]:
    kept = [c.c_uint64(value) for value in values]
    pointers = (c.c_void_p * (len(kept) + 1))(*[c.addressof(value) for value in kept])
    pointers.kept = kept  # type: ignore[attr-defined]
    return pointers


def _handle(value: int) -> c.c_void_p:
    return c.c_void_p(value)


class Worker(Driver):
    """A driver's client that launches."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        super().__init__(library)
        self.words = 0
        self.kernels: dict[int, dict[str, int]] = {}  # by context
        self.graphs: dict[tuple[int, int], int] = {}  # by word and value
        self.threads: dict[str, _Thread] = {}

    def load_kernels(self) -> Answer:
        """Load the kernels into the current context."""
        code, module = self._make("cuModuleLoadData", _ptx())
        kernels = {}
        for name in _KERNELS if code == 0 else ():
            code, function = self._make("cuModuleGetFunction", _handle(module), name.encode())
            kernels[name] = function
        if code == 0:
            self.kernels[self.current()[1]] = kernels
        return [code]

    def prepare(self) -> Answer:
        """Load kernels into the current context; the first call also allocates the pinned words."""
        (code,) = self.load_kernels()
        if code == 0 and not self.words:
            code, self.words = self._make("cuMemHostAlloc", c.c_size_t(8 * WORDS), DEVICEMAP)
            c.memset(self.words, 0, 8 * WORDS)
        return [code]

    def prepare_again(self) -> Answer:
        """Forget the words: they ended with their context."""
        self.words = 0
        return self.prepare()

    def _kernel(self, name: str) -> c.c_void_p:
        return _handle(self.kernels.get(self.current()[1], {}).get(name, 0))

    # --- the words

    def read_words(self, *indices: int) -> Answer:
        return [c.c_uint64.from_address(self.words + 8 * index).value for index in indices]

    def write_word(self, index: int, value: int) -> Answer:
        c.c_uint64.from_address(self.words + 8 * index).value = value
        return [0]

    def clear_words(self) -> Answer:
        c.memset(self.words, 0, 8 * WORDS)
        return [0]

    # --- launches

    def launch(self, symbol: str, word: int, stream: int = 0, value: int = 1) -> Answer:
        """Have the GPU write a word, by this entry point."""
        ways: dict[str, Callable[[str, int, int, int], Answer]] = {
            "cuLaunchKernel": self._launch_kernel,
            "cuLaunchKernelEx": self._launch_by_config,
            "cuLaunchCooperativeKernel": self._launch_cooperative,
            "cuLaunchCooperativeKernelMultiDevice": self._launch_on_devices,
            "cuLaunch": self._launch_in_the_old_way,
            "cuLaunchGrid": self._launch_in_the_old_way,
            "cuLaunchGridAsync": self._launch_in_the_old_way,
            "cuGraphLaunch": self._launch_graph,
        }
        way = ways.get(symbol.removesuffix("_ptsz"), self._fill)
        return way(symbol, word, stream, value)

    def set_words(self, count: int, word: int = 0, stream: int = 0) -> Answer:
        """That many launches, each writes the next word."""
        return [self.launch("cuLaunchKernel", word + i, stream)[0] for i in range(count)]

    def _setting(self, word: int, value: int) -> c.Array[c.c_void_p]:
        return _arguments(self.words + 8 * word, value)

    def _launch_kernel(self, symbol: str, word: int, stream: int, value: int) -> Answer:
        arguments = self._setting(word, value)
        kernel = self._kernel("aliquot_set")
        return self._call(symbol, kernel, *_GRID, _handle(stream), arguments, None)

    def _launch_cooperative(self, symbol: str, word: int, stream: int, value: int) -> Answer:
        arguments = self._setting(word, value)
        kernel = self._kernel("aliquot_set")
        return self._call(symbol, kernel, *_GRID, _handle(stream), arguments)

    def _launch_by_config(self, symbol: str, word: int, stream: int, value: int) -> Answer:
        config = _Config(_ONE, stream, None, 0)
        kernel, arguments = self._kernel("aliquot_set"), self._setting(word, value)
        return self._call(symbol, c.byref(config), kernel, arguments, None)

    def _launch_on_devices(self, symbol: str, word: int, stream: int, value: int) -> Answer:
        arguments = self._setting(word, value)
        one = _OnDevice(self._kernel("aliquot_set").value, _ONE, stream, c.addressof(arguments))
        return self._call(symbol, c.byref(one), 1, 0)

    def _launch_in_the_old_way(self, symbol: str, _word: int, stream: int, _value: int) -> Answer:
        grid = (1, 1) if "Grid" in symbol else ()
        into = (_handle(stream),) if "Async" in symbol else ()
        return self._call(symbol, self._kernel("aliquot_set"), *grid, *into)

    def _launch_graph(self, symbol: str, word: int, stream: int, value: int) -> Answer:
        if (word, value) not in self.graphs:
            self.graphs[word, value] = self._graph(word, value)
        return self._call(symbol, _handle(self.graphs[word, value]), _handle(stream))

    def _graph(self, word: int, value: int) -> int:
        """An executable graph of one kernel."""
        _, graph = self._make("cuGraphCreate", 0)
        arguments = self._setting(word, value)
        node = _Node(self._kernel("aliquot_set").value, _ONE, c.addressof(arguments))
        self._make("cuGraphAddKernelNode_v2", _handle(graph), None, c.c_size_t(0), c.byref(node))
        return self.instantiate(graph)[1]

    def _fill(self, symbol: str, word: int, stream: int, value: int) -> Answer:
        pointer = c.c_uint64(self.words + 8 * word)
        into = (_handle(stream),) if "Async" in symbol else ()
        if "D2D" in symbol:
            sizes = (c.c_size_t(1), c.c_size_t(1))
            return self._call(symbol, pointer, c.c_size_t(8), value, *sizes, *into)
        return self._call(symbol, pointer, value, c.c_size_t(1), *into)

    def launch_kernel(self, name: str, stream: int, *values: int) -> Answer:
        arguments = _arguments(*values)
        kernel = self._kernel(name)
        return self._call("cuLaunchKernel", kernel, *_GRID, _handle(stream), arguments, None)

    def spin_by(self, symbol: str, stream: int) -> Answer:
        """A kernel that touches no memory, by one of the calls for kernels."""
        arguments, kernel = _arguments(5000), self._kernel("aliquot_spin")
        if "Ex" in symbol:
            config = _Config(_ONE, stream, None, 0)
            return self._call(symbol, c.byref(config), kernel, arguments, None)
        more = () if "Cooperative" in symbol else (None,)
        return self._call(symbol, kernel, *_GRID, _handle(stream), arguments, *more)

    def fill_by(self, symbol: str, pointer: int, stream: int) -> Answer:
        count = c.c_size_t(4)
        return self._call(symbol, c.c_uint64(pointer), 7, count, _handle(stream))

    def spin_for(self, nanoseconds: int, stream: int = 0) -> Answer:
        return self.launch_kernel("aliquot_spin", stream, nanoseconds)

    def wait_for_word(self, word: int, value: int, stream: int = 0) -> Answer:
        """A kernel that spins until the word has this value."""
        return self.launch_kernel("aliquot_wait", stream, self.words + 8 * word, value)

    def fault(self, stream: int = 0) -> Answer:
        return self.launch_kernel("aliquot_fault", stream)

    def launch_nothing(self, stream: int = 0) -> Answer:
        """A launch that the driver refuses."""
        return self._call("cuLaunchKernel", None, *_GRID, _handle(stream), None, None)

    def make_streams(self, count: int, flags: int = 1) -> Answer:
        return [self.create_stream(flags)[1] for _ in range(count)]

    def launch_into(self, streams: list[int], word: int) -> Answer:
        """One launch into each stream. Returns the codes."""
        return [self.launch("cuLaunchKernel", word, stream)[0] for stream in streams]

    def hammer(self, threads: int, rounds: int) -> Answer:
        """Threads that concurrently launch into all kinds of streams, wait, and destroy streams."""
        context = self.current()[1]
        shared = self.make_streams(4)
        seen: set[int] = set()

        def work(number: int) -> None:
            self.set_current(context)
            for index in range(rounds):
                own = self.create_stream(index % 2)[1]
                stream = (0, PER_THREAD, shared[index % 4], own)[(index + number) % 4]
                seen.update(self.launch("cuLaunchKernel", number, stream))
                if index % 16 == number:
                    seen.update(self.synchronize_stream(stream))
                seen.update(self.destroy_stream(own))

        run_threads(work, threads)
        return [*sorted(seen)]

    # --- what else goes into streams

    def query_stream(self, stream: int = 0) -> Answer:
        return self._call("cuStreamQuery", _handle(stream))

    def query_event(self, event: int) -> Answer:
        return self._call("cuEventQuery", _handle(event))

    def wait_event(self, event: int, stream: int = 0) -> Answer:
        return self._call("cuStreamWaitEvent", _handle(stream), _handle(event), 0)

    def wait_value(self, word: int, value: int, stream: int = 0) -> Answer:
        address = c.c_uint64(self.words + 8 * word)
        return self._call("cuStreamWaitValue64_v2", _handle(stream), address, c.c_uint64(value), 0)

    def copy_word(self, to: int, word: int) -> Answer:
        """Copy one word to another by the synchronous copy to the host."""
        size = c.c_size_t(8)
        pointers = c.c_void_p(self.words + 8 * to), c.c_uint64(self.words + 8 * word)
        return self._call("cuMemcpyDtoH_v2", *pointers, size)

    def call(self, symbol: str, *arguments: int) -> Answer:
        """Any call with handles and numbers that fit one register each."""
        return self._call(symbol, *[c.c_uint64(argument) for argument in arguments])

    # --- captures and graphs

    def begin_capture(self, stream: int, mode: int = GLOBAL) -> Answer:
        return self._call("cuStreamBeginCapture_v2", _handle(stream), mode)

    def end_capture(self, stream: int) -> Answer:
        graph = c.c_uint64()
        code = self._call("cuStreamEndCapture", _handle(stream), c.byref(graph))
        return [*code, graph.value]

    def node_types(self, graph: int) -> Answer:
        """The types of a graph's nodes, sorted."""
        count = c.c_size_t()
        code = self._call("cuGraphGetNodes", _handle(graph), None, c.byref(count))
        nodes = (c.c_void_p * count.value)()
        self._call("cuGraphGetNodes", _handle(graph), nodes, c.byref(count))
        kinds = []
        for node in nodes:
            kind = c.c_int()
            self._call("cuGraphNodeGetType", _handle(node or 0), c.byref(kind))
            kinds.append(kind.value)
        return [*code, *sorted(kinds)]

    def instantiate(self, graph: int) -> Answer:
        return self._make("cuGraphInstantiateWithFlags", _handle(graph), c.c_uint64(0))

    def launch_graph(self, executable: int, stream: int = 0) -> Answer:
        return self._call("cuGraphLaunch", _handle(executable), _handle(stream))

    def trim_graphs(self, device: int) -> Answer:
        return self._call("cuDeviceGraphMemTrim", device)

    def destroy_executable(self, executable: int) -> Answer:
        return self._call("cuGraphExecDestroy", _handle(executable))

    # --- threads

    def in_thread(self, name: str, *calls: list[object]) -> list[Answer]:
        """Make the calls in the thread of that name, which stays until it is told to end."""
        if name not in self.threads:
            context = self.current()[1]
            self.threads[name] = _Thread(lambda: self.set_current(context))
        return self.threads[name].run([functools.partial(self._do, call) for call in calls])

    def end_thread(self, name: str) -> Answer:
        self.threads.pop(name).end()
        return [0]

    def _do(self, call: list[object]) -> Answer:
        name, *arguments = call
        done: Answer = getattr(self, str(name))(*arguments)
        return done


def run_threads(work: Callable[[int], None], count: int) -> None:
    """Start that many threads, each with its number."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Thread:
    """A thread that runs lists of calls, one after the other."""

    def __init__(self, first: Callable[[], object]) -> None:
        self._handed: list[Callable[[], Answer]] | None = []
        self._done: list[Answer] = []
        self._given, self._ready = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, args=(first,), daemon=True)
        self._thread.start()

    def _work(self, first: Callable[[], object]) -> None:
        first()
        while self._given.acquire() and self._handed is not None:
            self._done = [call() for call in self._handed]
            self._ready.release()

    def run(self, calls: list[Callable[[], Answer]]) -> list[Answer]:
        self._handed = calls
        self._given.release()
        self._ready.acquire()
        return self._done

    def end(self) -> None:
        self._handed = None
        self._given.release()
        self._thread.join()
