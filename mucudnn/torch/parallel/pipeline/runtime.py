"""`BidirectionalPipeline`: the training of a model whose stages are on several ranks."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from mucudnn.arrays.call import bytes_of
from mucudnn.errors import NothingFitsError, UsageError
from mucudnn.solver import Infeasible
from mucudnn.solver.devices.pipelines import INSTANT, PeerLink, PipelineTimeline, choose_schedule
from mucudnn.solver.devices.schedules import SCHEDULES, Schedule, forward_only
from mucudnn.torch.parallel.pipeline.agreement import Agreement
from mucudnn.torch.parallel.pipeline.arguments import Arguments, divide, join
from mucudnn.torch.parallel.pipeline.gradients import Reduction
from mucudnn.torch.parallel.pipeline.losses import Loss, MiniBatchLoss, check_parameters
from mucudnn.torch.parallel.pipeline.mini_batch import MiniBatch
from mucudnn.torch.parallel.pipeline.splitting import Split, merge_stages
from mucudnn.torch.parallel.pipeline.stages import in_mode
from mucudnn.torch.parallel.pipeline.transfers import Transfers
from mucudnn.torch.parallel.ranks import make_group


class BidirectionalPipeline:
    """A model cut into stages on several ranks, which trains with a schedule.

    After `step`, the gradients equal those of the undivided model on the whole mini-batch. A parameter that
    several stages share has the sum of its gradients in all of them. Layers that look at the whole batch,
    such as BatchNorm in training, look at one micro-batch at a time, as in every pipeline.

    Args:
        stages: the whole model, cut into as many modules as the mesh's dimension "pipe" has ranks, and the
            same on every rank. A stage may be on the meta device where it is not held. Stages pass a tensor,
            a tuple of tensors, which are arguments of the next stage by position, or a dict, by name.
        mesh: a mesh with the dimension "pipe" and, with data parallelism, "data".
        loss: a function of the last stage's output and of the targets of the same samples. It returns the
            mean over the samples, or (sum, weight) if their weights differ.
        schedule: "gems", "1f1b", "1f1b, recompute", "gpipe", "layers", "bidirectional", or "auto", which
            takes the fastest of them in a simulation whose ranks stay within `memory`, by the costs of stages
            that `split` cut. With "gems" and "bidirectional" each rank holds two stages.
        replications: half the number of micro-batches into which a mini-batch is divided. A mini-batch with
            fewer samples has as many micro-batches as samples.
        memory: the most bytes that "auto" may use on a rank; None for no limit.
        link: the connection between two ranks, for "auto".
        timeout: seconds to wait for another rank before an error.

    Attributes:
        modules: the stages that this rank holds, {(stage, replica): module}.
        module: the same stages as a single module, with the names that `state_dict` uses.
        schedule: the schedule in use.
        timeline: the simulation that "auto" chose; None with another schedule.
        live: the most micro-batches whose activations this rank kept at once in the last step.

    Raises:
        UsageError: an argument cannot be used, or two stages share a parameter that is on the meta device
            only. All ranks raise it.
        NothingFitsError: no schedule stays within the memory.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        mesh: DeviceMesh,
        loss: Loss,
        schedule: str = "auto",
        replications: int = 1,
        *,
        memory: int | str | None = None,
        link: PeerLink = INSTANT,
        timeout: float = 300.0,
    ) -> None:
        self._pipes = pipes = _check(stages, mesh, schedule, replications)
        check_parameters(loss)
        self._loss = loss
        self._micro_batches = 2 * replications
        self._device = torch.device(mesh.device_type)
        if mesh.device_type == "cuda":
            self._device = torch.device("cuda", torch.cuda.current_device())
        world_rank = dist.get_rank()
        (self._row,) = [row for row in pipes if world_rank in row]
        self._rank = self._row.index(world_rank)
        limit = timedelta(seconds=timeout)
        self._agreement = Agreement(make_group(sorted(rank for row in pipes for rank in row), limit, "gloo"))
        # All processes make all groups, because new_group is a collective operation of the whole world.
        groups = [[make_group(row, limit) for _ in range(2)] for row in pipes]
        self._groups = groups[pipes.index(self._row)]
        self.live = 0
        self.timeline: PipelineTimeline | None = None
        if schedule == "auto":
            if not isinstance(stages, Split):
                raise UsageError('schedule="auto" needs the costs that split measures: name a schedule')
            limit_of_rank = None if memory is None else bytes_of("memory", memory)
            try:
                self.timeline = choose_schedule(
                    stages.costs, self._micro_batches, memory=limit_of_rank, link=link
                )
            except Infeasible as error:
                raise NothingFitsError(str(error)) from None
            self.schedule = self.timeline.schedule
        else:
            self.schedule = SCHEDULES[schedule](len(stages), self._micro_batches)
        with self._agreement.together():
            # The middle rank of an odd number holds one stage for both replicas, which share its module.
            held = self.schedule.stages_of(self._rank)
            self.modules = {(stage, replica): _check_real(stages, stage) for stage, replica in held}
        self.module = merge_stages({stage: module for (stage, _), module in self.modules.items()})
        self._reduction = Reduction(
            self.schedule,
            pipes,
            self.modules,
            stages,
            self._device,
            self._agreement,
            limit,
        )
        self._reduction.copy(parameters=True)
        self._reduction.copy(parameters=False)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of all stages that this rank holds, each once, for an optimizer."""
        yield from dict.fromkeys(p for module in self.modules.values() for p in module.parameters())

    def step(self, inputs: Any, targets: Any, *, scale: float | Tensor = 1.0) -> Tensor:
        """Run one mini-batch forward and backward. Return the loss; gradients add to `.grad`.

        Args:
            inputs: the mini-batch, a tensor, or a tuple or dict of tensors, which are arguments of the first
                stage by position or by name. The samples are along axis 0. All ranks of a pipeline pass the
                same mini-batch, and each pipeline along "data" another.
            targets: the samples' targets, likewise; the loss gets a tuple or dict as it is.
            scale: a factor of the gradients that does not change the returned loss: 1/n to accumulate n
                steps, or that of a GradScaler. It must be the same on all ranks.

        Raises:
            UsageError: the mini-batch has no samples, or a stage's outputs cannot be sent.
            MucudnnError: another rank failed, or did not answer in time.
            Exception: an error of this rank's stages or of the loss.

        After an error, gradients are as before the step.
        """
        input_parts, target_parts = self._divide(inputs=inputs, targets=targets)
        loss = MiniBatchLoss(self._loss, sum(part.samples for part in target_parts), scale)
        schedule = self.schedule
        if len(input_parts) < self._micro_batches:
            schedule = SCHEDULES[schedule.name](schedule.stages, len(input_parts))
        transfers = self._transfers(schedule)
        before = {p: p.grad for p in self.parameters()}
        for parameter in before:
            parameter.grad = None
        run = MiniBatch(schedule, self.modules, input_parts, transfers, loss, target_parts)
        try:
            run.perform(schedule.orders[self._rank])
            figures = self._agreement.gather(loss.figures, run.error)
            own = [[figures[rank] for rank in row] for row in self._pipes]
            sums, weights = torch.tensor(own, dtype=torch.float64).sum(1).unbind(1)
            value = (sums / weights).mean()
            self._reduction.sum_gradients(loss.factor(float(weights[self._pipes.index(self._row)])))
            self._reduction.copy(parameters=False)
        except BaseException:
            for parameter, earlier in before.items():
                parameter.grad = earlier
            raise
        self.live = run.live
        for parameter, earlier in before.items():
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else earlier.add_(parameter.grad)
        return value.to(self._device)

    @torch.no_grad()
    def evaluate(self, inputs: Any) -> Any:
        """Run one mini-batch forward in evaluation mode and without gradients. Return the model's outputs.

        Layers return to their modes afterwards. With two replicas the first one runs. Every rank must call
        this method.

        Args:
            inputs: the mini-batch, as in `step`.

        Returns:
            What the last stage returns for the mini-batch: a tensor, or a tuple or dict of tensors. None on
            ranks other than the last.

        Raises:
            UsageError: the mini-batch has no samples, or outputs cannot be sent or have no samples.
            MucudnnError: another rank failed, or did not answer in time.
            Exception: an error of this rank's stages.
        """
        (parts,) = self._divide(inputs=inputs)
        schedule = forward_only(self.schedule.stages, len(parts))
        with in_mode(self.modules.values(), training=False):
            run = MiniBatch(schedule, self.modules, parts, self._transfers(schedule))
            run.perform(schedule.orders[self._rank])
        with self._agreement.together():
            if run.error is not None:
                raise run.error
            return join(run.outputs, f"the output of stage {self._rank}").value if run.outputs else None

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors of this rank's stages by their names in the whole model.

        The names are those of `nn.Sequential(*stages)`, or of the model that `split` cut. The dicts of all
        ranks together have all tensors, and `torch.distributed.checkpoint.save` writes them as one model.
        """
        return dict(self.module.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load this rank's tensors from a dict of the whole model, or of at least this rank's stages.

        Every rank must call this method.

        Raises:
            UsageError: the dict has names that are not in the model.
            RuntimeError: tensors of this rank's stages are missing, or have other shapes.
        """
        own = self.module.state_dict().keys()
        names = set[str]().union(*self._agreement.gather(set(own)).values())
        with self._agreement.together():
            unknown = sorted(state_dict.keys() - names)
            if unknown:
                raise UsageError(
                    f"the state dict has {len(unknown)} names that are not in the model, such as {unknown[0]}"
                )
            self.module.load_state_dict({name: state_dict[name] for name in own if name in state_dict})

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Clip the gradients by the norm of the whole model's gradients, and return the norm before clipping.

        The result is that of `torch.nn.utils.clip_grad_norm_` on the undivided model. With `parameters()`
        that function would take the norm of this rank's stages only. Every rank must call this method.

        Args:
            max_norm: the largest norm that the gradients have afterwards.
            norm_type: the order of the norm, which may be `inf`.
            error_if_nonfinite: raise an error if the norm is infinite or not a number.

        Returns:
            The norm, a scalar, the same on every rank.

        Raises:
            RuntimeError: the norm is not finite, on every rank alike.
        """
        norm = self._reduction.gradient_norm(float(norm_type))
        if error_if_nonfinite and not bool(norm.isfinite()):
            raise RuntimeError(
                f"the norm of order {norm_type} of the gradients is {float(norm)}, so they are not clipped: "
                "skip this step, or give error_if_nonfinite=False"
            )
        nn.utils.clip_grads_with_norm_(self.parameters(), max_norm, norm)
        return norm

    def _divide(self, **values: Any) -> list[list[Arguments]]:
        """Return the micro-batches of inputs and targets, or raise an error on every rank."""
        error: Exception | None = None
        divided, count = list[list[Arguments]](), 0
        try:
            divided = divide(values, self._micro_batches)
            count = sum(part.samples for part in divided[0])
        except Exception as failure:  # the caller may pass anything
            error = failure
        samples = self._agreement.gather(count, error)
        for row in self._pipes:
            own = sorted(samples[rank] for rank in row)
            if own[0] != own[-1]:
                raise UsageError(
                    f"the ranks {row} of a pipeline have mini-batches of {own[0]} to {own[-1]} samples: "
                    "give all of them the same mini-batch"
                )
        return divided

    def _transfers(self, schedule: Schedule) -> Transfers:
        return Transfers(schedule, self._rank, self._row, self._groups, self._agreement.group, self._device)


def _check(
    stages: Sequence[nn.Module], mesh: DeviceMesh, schedule: str, replications: int
) -> list[list[int]]:
    """Return the global ranks of each pipeline. Raises UsageError."""
    names = mesh.mesh_dim_names or ()
    if "pipe" not in names or not set(names) <= {"pipe", "data"}:
        raise UsageError(f"the mesh has the dimensions {names}: it must have 'pipe', and may have 'data'")
    if schedule != "auto" and schedule not in SCHEDULES:
        raise UsageError(f"there is no schedule {schedule!r}: give auto, {', '.join(SCHEDULES)}")
    if replications < 1:
        raise UsageError(f"replications is {replications}, must be at least 1")
    ranks = mesh.mesh.movedim(names.index("pipe"), -1).reshape(-1, mesh.size(names.index("pipe")))
    if len(stages) != ranks.shape[1]:
        raise UsageError(
            f"the model has {len(stages)} stages and the mesh {ranks.shape[1]} ranks along 'pipe': "
            "give one stage for each"
        )
    pipes: list[list[int]] = ranks.tolist()
    return pipes


def _check_real(stages: Sequence[nn.Module], stage: int) -> nn.Module:
    """Return the module of a stage. Raises UsageError if it has no data, on the meta device."""
    module = stages[stage]
    if any(t.is_meta for t in (*module.parameters(), *module.buffers())):
        raise UsageError(
            f"stage {stage} is on the meta device, and this rank holds it: make it real, such as by to_empty"
        )
    return module
