"""Random programs of the legacy API: cudnnGet…, cudnnFind… and cudnnConvolution….

Each program asks for algorithms and sizes, in the usual order or not, and runs an algorithm. The workspace
has the size of one answer, of several answers, or of none.
"""

from dataclasses import dataclass, field, replace
from random import Random

from graph_operations import packed_strides
from random_problems import ALGORITHMS, GEMMS, PASSES, RUNNABLE, any_problem, batches_of
from reference import OUTPUT
from scripts import Allocate, Argument, Call, Fill, Refill, Script, Step, Threads, Work
from shim_client import NAMES, TYPES, shapes

from mucudnn._native import Problem

SCALES = (1.0, 1.0, 1.0, 0.5, -1.0, 0.0)
BETAS = (0.0, 0.0, 0.0, 1.0, 0.5, -1.0)
FIXED_SIZES = (0, 0, 1, 64, 1000, 5000, 40_000, 1 << 20)
RELU, IDENTITY = 1, 5
Request = tuple[str, int, Argument, str]  # pass, mini-batch, algorithm and workspace


@dataclass
class Asked:
    """The keys of the answers that a program has about one pass at one mini-batch."""

    sizes: dict[int, list[str]] = field(default_factory=dict)  # keys of workspace sizes, by algorithm
    results: list[str] = field(default_factory=list)  # keys of the results of Get and Find
    whole: list[str] = field(default_factory=list)  # keys of results with all algorithms


class LegacyProgram:
    """The writer of one random program."""

    def __init__(self, seed: int | str) -> None:
        self.random = Random(f"legacy {seed}")
        self.script = Script()
        self.problem = any_problem(self.random)
        self.type_ = self.problem.data_type
        self.batches = batches_of(self.random, self.problem)
        self.passes = self.random.sample(PASSES, self.random.choice((1, 1, 2)))
        self.asked: dict[tuple[str, int], Asked] = {}
        # An oddity of the descriptors, which makes the library refuse or compute another problem.
        self.oddity = self.random.choice((None,) * 20 + ("flipped", "strided", "mixed", "compute", "format"))
        self.epoch = 0  # counts the changes of the descriptors

    def write(self) -> list[Step]:
        self._set_up()
        actions = (
            (self._ask_size, 5), (self._get, 3), (self._find, 1), (self._find_ex, 1), (self._execute, 8),
            (self._execute_fused, 8), (self._misuse, 1), (self._set_again, 1), (self._threads, 0.4),
            (self._epoch, 2),
        )  # fmt: skip
        chosen, weights = zip(*actions, strict=True)
        for _ in range(self.random.randint(3, 9)):
            self.random.choices(chosen, weights)[0]()
        self._execute()
        self._tear_down()
        return self.script.steps

    # --- descriptors ---

    def _set_up(self) -> None:
        script = self.script
        self.handles = [script.name("handle") for _ in range(self.random.choice((1, 1, 2)))]
        for handle in self.handles:
            script.call("cudnnCreate", ("new", handle))
        for batch in self.batches:
            for name in "xy":
                script.call("cudnnCreateTensorDescriptor", ("new", f"{name}{batch}"))
                self._set_tensor(name, batch)
        script.call("cudnnCreateFilterDescriptor", ("new", "w"))
        self._set_filter()
        script.call("cudnnCreateConvolutionDescriptor", ("new", "convolution"))
        self._set_convolution()

    def _set_tensor(self, name: str, batch: int) -> None:
        sizes = shapes(self.problem.replace(mini_batch=batch))[name]
        type_ = TYPES[self.type_]
        if self.oddity == "mixed" and name == "y":
            type_ = (type_ + 1) % 3
        strides = packed_strides(sizes, self.problem.layout)
        if self.oddity == "strided" and name == "x":
            strides = [2 * stride for stride in strides]
        if self.oddity == "format" and name == "y":
            strides = packed_strides(sizes, "nhwc" if self.problem.layout == "nchw" else "nchw")
        descriptor = ("slot", f"{name}{batch}")
        if self.oddity is None and self.random.random() < 0.5:
            self.script.call(
                "cudnnSetTensorNdDescriptorEx", descriptor, ("int", int(self.problem.layout == "nhwc")),
                ("int", type_), ("int", len(sizes)), ("ints", sizes),
            )  # fmt: skip
        else:
            self.script.call(
                "cudnnSetTensorNdDescriptor", descriptor, ("int", type_), ("int", len(sizes)),
                ("ints", sizes), ("ints", strides),
            )  # fmt: skip

    def _set_filter(self) -> None:
        sizes = shapes(self.problem)["w"]
        self.script.call(
            "cudnnSetFilterNdDescriptor", ("slot", "w"), ("int", TYPES[self.type_]),
            ("int", int(self.problem.layout == "nhwc")), ("int", len(sizes)), ("ints", sizes),
        )  # fmt: skip

    def _set_convolution(self, math: int | None = None) -> None:
        problem, script = self.problem, self.script
        compute = int(self.type_ == "f64")
        if self.oddity == "compute":
            compute = (compute + 1) % 3
        script.call(
            "cudnnSetConvolutionNdDescriptor", ("slot", "convolution"), ("int", problem.dims),
            ("ints", problem.padding), ("ints", problem.stride), ("ints", problem.dilation),
            ("int", 0 if self.oddity == "flipped" else 1), ("int", compute),
        )  # fmt: skip
        script.call("cudnnSetConvolutionGroupCount", ("slot", "convolution"), ("int", problem.groups))
        if math is None:
            math = self.random.choice((0, 0, 0, 1, 2, 3))
        script.call("cudnnSetConvolutionMathType", ("slot", "convolution"), ("int", math))

    def _set_again(self) -> None:
        """Set descriptors again: to the same convolution, or to another one and back."""
        choice = self.random.randrange(4)
        if choice == 0:
            self._set_convolution()
        elif choice == 1:
            self._set_filter()
        elif choice == 2:
            batch = self.random.choice(self.batches)
            name = self.random.choice("xy")
            self.script.call("cudnnDestroyTensorDescriptor", ("slot", f"{name}{batch}"))
            self.script.call("cudnnCreateTensorDescriptor", ("new", f"{name}{batch}"))
            self._set_tensor(name, batch)
        else:  # a question about another problem
            groups = self.problem.groups
            self.script.call("cudnnSetConvolutionGroupCount", ("slot", "convolution"), ("int", groups + 1))
            self._ask_size(forgotten=True)
            self.script.call("cudnnSetConvolutionGroupCount", ("slot", "convolution"), ("int", groups))

    def _tear_down(self) -> None:
        for batch in self.batches:
            for name in "xy":
                self.script.call("cudnnDestroyTensorDescriptor", ("slot", f"{name}{batch}"))
        self.script.call("cudnnDestroyFilterDescriptor", ("slot", "w"))
        self.script.call("cudnnDestroyConvolutionDescriptor", ("slot", "convolution"))
        for handle in self.handles:
            self.script.call("cudnnDestroy", ("slot", handle))

    # --- questions ---

    def _pick(self) -> tuple[str, int, Asked]:
        pass_, batch = self.random.choice(self.passes), self.random.choice(self.batches)
        return pass_, batch, self.asked.setdefault((pass_, batch), Asked())

    def _handle(self) -> Argument:
        return ("slot", self.random.choice(self.handles))

    def _descriptors(self, pass_: str, batch: int) -> list[Argument]:
        x, w, y, c = (("slot", name) for name in (f"x{batch}", "w", f"y{batch}", "convolution"))
        return {"forward": [x, w, c, y], "backward_data": [w, y, c, x], "backward_filter": [x, y, c, w]}[
            pass_
        ]

    def _algorithm(self, pass_: str) -> int:
        if self.random.random() < 0.7:
            return self.random.choice(GEMMS[pass_])
        if self.random.random() < 0.7:
            return self.random.choice(RUNNABLE[pass_])
        return self.random.randrange(ALGORITHMS[pass_] + 1)

    def _ask_size(self, *, forgotten: bool = False) -> None:
        pass_, batch, asked = self._pick()
        algorithm = self._algorithm(pass_)
        key = self.script.name("size:")
        self._ask_for(pass_, batch, algorithm, key)
        if not forgotten:
            asked.sizes.setdefault(algorithm, []).append(key)

    def _ask_for(self, pass_: str, batch: int, algorithm: int, key: str) -> None:
        self.script.call(
            f"cudnnGetConvolution{NAMES[pass_]}WorkspaceSize", self._handle(),
            *self._descriptors(pass_, batch), ("int", algorithm), ("out", key, "INT64", 1),
        )  # fmt: skip

    def _results(self, asked: Asked) -> list[Argument]:
        key, room = self.script.name("results"), self.random.choice((1, 2, 5, 10, 10))
        asked.results.append(key)
        if room == 10:
            asked.whole.append(key)
        return [("int", room), ("out", "count", "INT32", 1), ("results", key, room)]

    def _select(self, name: str) -> None:
        pass_, batch, asked = self._pick()
        requested, _, results = self._results(asked)
        key = results[1]
        # The drop-in puts its own result before those of the library, so their number may differ.
        count = ("out", f"free:{key} count", "INT32", 1)
        self.script.call(
            name.format(NAMES[pass_]), self._handle(), *self._descriptors(pass_, batch), requested, count,
            results,
        )  # fmt: skip

    def _get(self) -> None:
        self._select("cudnnGetConvolution{}Algorithm_v7")

    def _find(self) -> None:
        self._select("cudnnFindConvolution{}Algorithm")

    def _find_ex(self) -> None:
        pass_, batch, asked = self._pick()
        work = self._buffers(pass_, batch, beta=0.0)
        scratch = self.script.name("scratch")
        size = self.random.choice(FIXED_SIZES)
        self.script.add(Allocate(scratch, ("fixed", size), Fill("scratch")))
        requested, _, results = self._results(asked)
        x, w, y = ((("slot", d), ("buffer", work.buffers[n])) for n, d in self._slots(batch).items())
        c = ("slot", "convolution")
        operands = {
            "forward": [*x, *w, c, *y],
            "backward_data": [*w, *y, c, *x],
            "backward_filter": [*x, *y, c, *w],
        }[pass_]
        self.script.call(
            f"cudnnFindConvolution{NAMES[pass_]}AlgorithmEx", self._handle(), *operands, requested,
            ("out", f"free:{results[1]} count", "INT32", 1), results, ("buffer", scratch), ("size", scratch),
            limit=scratch,
        )  # fmt: skip

    # --- executions ---

    def _at(self, batch: int) -> Problem:
        """Return the problem at this mini-batch as the library runs it, if it does not refuse it."""
        problem = self.problem.replace(mini_batch=batch)
        is_ambiguous = problem.out_channels == 1 or max(problem.output) == 1
        if self.oddity != "format" or is_ambiguous:
            return problem
        # y has the other layout, and the library runs the problem only if x and w have this layout too.
        return problem.replace(layout="nhwc" if problem.layout == "nchw" else "nchw")

    def _slots(self, batch: int) -> dict[str, str]:
        return {"x": f"x{batch}", "w": "w", "y": f"y{batch}"}

    def _buffers(self, pass_: str, batch: int, *, beta: float, alpha: float = 1.0) -> Work:
        """Allocate tensors. An output that is not read is full of NaN."""
        problem, names = self._at(batch), {}
        for name in "xwy":
            names[name] = self.script.name(name)
            is_output = name == OUTPUT[pass_]
            kind = "nan" if is_output and beta == 0 else "random"
            self._allocate(problem, names[name], name, Fill(kind, self.type_, self.random.randrange(1000)),
                           is_input=not is_output)  # fmt: skip
        return Work(str(problem), pass_, alpha, beta, names)

    def _allocate(self, problem: Problem, buffer: str, name: str, fill: Fill, *, is_input: bool) -> None:
        size = problem.element_size
        for extent in shapes(problem)[name]:
            size *= extent
        if self.oddity == "strided":
            size *= 2
        if self.oddity == "mixed":
            size *= 4
        self.script.add(
            Allocate(
                buffer, ("fixed", size), fill, alignment=self.random.choice((16, 16, problem.element_size)),
                at_end=self.random.random() < 0.8, is_input=is_input,
            )
        )  # fmt: skip

    def _scratch(self, pass_: str, batch: int, algorithm: int | None, asked: Asked) -> str:
        """Allocate a workspace with the size of an answer or with a fixed size. Return its name."""
        random, name = self.random, self.script.name("workspace")
        own = asked.sizes.get(-1 if algorithm is None else algorithm, [])
        same = [key for keys in asked.sizes.values() for key in keys]
        larger = [
            key
            for (other_pass, other_batch), other in self.asked.items()
            if other_pass == pass_ and other_batch >= batch
            for key in other.sizes.get(-1 if algorithm is None else algorithm, [])
        ]
        choices: list[tuple[object, ...]] = [("fixed", random.choice(FIXED_SIZES)), ("fixed", 1 << 20)]
        if own:
            choices = [(random.choice(("least", "most", "first", "last")), tuple(own))] * 6 + choices
        elif larger:
            choices = [("least", tuple(larger))] * 8 + choices
        if same:
            choices.append(("most", tuple(same)))
        if asked.whole and algorithm is not None:
            choices += [("memory", random.choice(asked.whole), algorithm)] * 2
        size = random.choice(choices)
        self.script.add(
            Allocate(name, size, Fill("scratch"), alignment=random.choice((1, 16, 64)),
                     at_end=random.random() < 0.8)
        )  # fmt: skip
        return name

    def _choice(self, pass_: str, batch: int, asked: Asked) -> tuple[Argument, str]:
        """Choose an algorithm. Return it and the name of a workspace for it."""
        if asked.results and self.random.random() < 0.5:
            key, which = self.random.choice(asked.results), self.random.choice(("first", "first", "last"))
            name = self.script.name("workspace")
            self.script.add(Allocate(name, ("memory", key, which), Fill("scratch"), alignment=1))
            return ("algorithm", key, which), name
        known = list(asked.sizes)
        if known and self.random.random() < 0.7:
            algorithm = self.random.choice(known)
        else:
            algorithm = self._algorithm(pass_)
        return ("int", algorithm), self._scratch(pass_, batch, algorithm, asked)

    def _epoch(self) -> None:
        """Ask for a workspace at the largest mini-batch, and use it for the smaller ones too."""
        pass_, batches = self.random.choice(self.passes), sorted(self.batches, reverse=True)
        algorithm, key, name = (
            self._algorithm(pass_),
            self.script.name("size:"),
            self.script.name("workspace"),
        )
        self._ask_for(pass_, batches[0], algorithm, key)
        self.script.add(Allocate(name, ("first", (key,)), Fill("scratch"), alignment=16))
        is_fused = pass_ == "forward" and self.random.random() < 0.5
        for batch in batches:
            request = pass_, batch, ("int", algorithm), name
            if is_fused:
                self._execute_fused(request)
            else:
                self.script.steps += self._execution(request)

    def _execution(self, request: Request | None = None) -> list[Step]:
        before, self.script.steps = self.script.steps, []
        pass_, batch, asked = self._pick()
        if request is not None:
            pass_, batch, *_ = request
        alpha, beta = self.random.choice(SCALES), self.random.choice(BETAS)
        work = self._buffers(pass_, batch, alpha=alpha, beta=beta)
        algorithm, workspace = request[2:] if request else self._choice(pass_, batch, asked)
        x, w, y = ((("slot", d), ("buffer", work.buffers[n])) for n, d in self._slots(batch).items())
        inputs, output = {
            "forward": ([*x, *w], y),
            "backward_data": ([*w, *y], x),
            "backward_filter": ([*x, *y], w),
        }[pass_]
        double = self.type_ == "f64"
        written = work.buffers[OUTPUT[pass_]]
        call = Call(
            f"cudnnConvolution{NAMES[pass_]}",
            (
                self._handle(), ("scale", alpha, double), *inputs, ("slot", "convolution"), algorithm,
                ("buffer", workspace), ("size", workspace), ("scale", beta, double), *output,
            ),
            outputs=(written,),
            work=None if self.oddity == "strided" else work,
            type_=self.type_,
        )  # fmt: skip
        self._call_some_times(call, written, work)
        steps, self.script.steps = self.script.steps, before
        return steps

    def _call_some_times(self, call: Call, written: str, work: Work) -> None:
        self.script.add(call)
        for _ in range(self.random.choice((0, 0, 0, 1, 2))):
            kind = "nan" if work.beta == 0 or work.fused else "random"
            self.script.add(Refill(written, Fill(kind, self.type_, self.random.randrange(1000))))
            self.script.add(call)

    def _execute(self) -> None:
        self.script.steps += self._execution()

    def _execute_fused(self, request: Request | None = None) -> None:
        if "forward" not in self.passes:
            return self._execute()
        random, script = self.random, self.script
        batch = request[1] if request else random.choice(self.batches)
        asked = self.asked.setdefault(("forward", batch), Asked())
        alpha, beta = random.choice(SCALES), random.choice(BETAS)
        problem = self._at(batch)
        z_is = random.choice(("y", "y", "like y", "like y", "other strides"))
        in_place = z_is == "y" and beta != 0
        work = self._buffers("forward", batch, alpha=alpha, beta=beta if in_place else 0.0)
        names = dict(work.buffers)
        names["bias"], names["z"] = script.name("bias"), names["y"]
        channels = (1, problem.out_channels, *(1 for _ in problem.output))
        script.add(
            Allocate(names["bias"], ("fixed", problem.out_channels * problem.element_size),
                     Fill("random", self.type_, random.randrange(1000)), is_input=True)
        )  # fmt: skip
        bias, activation, z = script.name("bias"), script.name("activation"), ("slot", f"y{batch}")
        script.call("cudnnCreateTensorDescriptor", ("new", bias))
        script.call(
            "cudnnSetTensorNdDescriptorEx", ("slot", bias), ("int", int(problem.layout == "nhwc")),
            ("int", TYPES[self.type_]), ("int", len(channels)), ("ints", channels),
        )  # fmt: skip
        script.call("cudnnCreateActivationDescriptor", ("new", activation))
        mode = random.choice((RELU, RELU, RELU, IDENTITY, IDENTITY, random.choice((0, 3))))
        nan = int(random.random() < 0.1)
        coefficient = random.choice((0.0, 0.0, 0.5))
        script.call(
            "cudnnSetActivationDescriptor", ("slot", activation), ("int", mode), ("int", nan),
            ("double", coefficient),
        )  # fmt: skip
        if z_is != "y":
            names["z"] = script.name("z")
            self._allocate(problem, names["z"], "y", Fill("random", self.type_, 5), is_input=True)
        if z_is == "other strides":
            z = ("slot", script.name("z"))
            sizes = shapes(problem)["y"]
            script.call("cudnnCreateTensorDescriptor", ("new", z[1]))
            script.call(
                "cudnnSetTensorNdDescriptor", z, ("int", TYPES[self.type_]), ("int", len(sizes)),
                ("ints", sizes), ("ints", [stride + 1 for stride in packed_strides(sizes, problem.layout)]),
            )  # fmt: skip
        algorithm, workspace = request[2:] if request else self._choice("forward", batch, asked)
        double = self.type_ == "f64"
        call = Call(
            "cudnnConvolutionBiasActivationForward",
            (
                self._handle(), ("scale", alpha, double),
                ("slot", f"x{batch}"), ("buffer", names["x"]), ("slot", "w"), ("buffer", names["w"]),
                ("slot", "convolution"), algorithm, ("buffer", workspace), ("size", workspace),
                ("scale", beta, double), z, ("buffer", names["z"]), ("slot", bias),
                ("buffer", names["bias"]), ("slot", activation), ("slot", f"y{batch}"),
                ("buffer", names["y"]),
            ),
            outputs=(names["y"],),
            work=None
            if self.oddity == "strided"
            else Work(str(problem), "forward", alpha, beta, names, {RELU: "relu"}.get(mode, "identity")),
            type_=self.type_,
        )  # fmt: skip
        script.add(call)
        script.call("cudnnDestroyActivationDescriptor", ("slot", activation))
        script.call("cudnnDestroyTensorDescriptor", ("slot", bias))
        return None

    def _misuse(self) -> None:
        """Make a call with a NULL argument or an invalid size."""
        before, self.script.steps = self.script.steps, []
        self.random.choice((self._ask_size, self._get, self._execute, self._execute, self._execute_fused))()
        steps, self.script.steps = self.script.steps, before
        places = [
            (index, place)
            for index, step in enumerate(steps)
            if isinstance(step, Call) and "Create" not in step.function and "Destroy" not in step.function
            for place, argument in enumerate(step.arguments)
            if argument[0] in ("slot", "buffer", "scale", "out", "results")
        ]
        index, place = self.random.choice(places)
        call = steps[index]
        assert isinstance(call, Call)
        arguments = list(call.arguments)
        arguments[place] = ("null",)
        steps[index] = replace(call, arguments=tuple(arguments))
        self.script.steps += steps

    def _threads(self) -> None:
        self.script.add(Threads(tuple(tuple(self._execution()) for _ in range(self.random.choice((2, 3))))))


def legacy_program(seed: int | str) -> list[Step]:
    return LegacyProgram(seed).write()
