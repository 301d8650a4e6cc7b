"""What a stage computes next: the order of its work, given where its parts stand. Sans-I/O.

A stage computes one thing at a time. When it is idle, it begins the first of these that is ready:

    1. a snapshot or a merge, at an update boundary         (update_boundary.py: rounds, lag)
    2. the update, once its group is complete               (update_boundary.py: what it is clipped by); weight
       gradients that still wait come first
    3. the backward of the oldest micro-batch, alternating with 5 when both are ready
    4. the forward of an evaluation, alternating with 5 when both are ready            (evaluations.py)
    5. the forward of the next micro-batch                  (flow.py: bounded staleness, with its proof)
    6. the weight gradients of the oldest micro-batch whose backward was split

3 alternates because micro-batches that travel in a bunch would else do so for ever: a stage that serves the backwards
of a bunch first sends its forwards on in a bunch again, and idles while that travels (docs/decisions.md).

A split backward computes what it sends back first (3). The rest (6) comes when nothing else is ready, or before what
needs it done: the update, a whole backward, or whatever memory would not hold beside it. Where gradients are clipped,
the end of a group is not split, since the gradient that is sent carries the group's norm.

A synchronous schedule (1f1b, gpipe: cluster_planner/inputs/model_costs.py) says whether 3 or 5 is next, and waits
for it.
"""

from __future__ import annotations

from ravnest.pipeline import instructions as ins
from ravnest.pipeline.evaluations import Evaluations
from ravnest.pipeline.flow import Admission, Flow
from ravnest.pipeline.stage_shape import StageShape
from ravnest.pipeline.update_boundary import GradientNorms, UpdateBoundary


class WorkOrder:
    """Chooses the computations of one stage. Its parts belong to the stage machine, which tells them what happens."""

    def __init__(
        self,
        shape: StageShape,
        flow: Flow,
        admission: Admission,
        norms: GradientNorms,
        boundary: UpdateBoundary,
        evaluations: Evaluations,
    ) -> None:
        self._shape = shape
        self._is_first, self._is_synchronous, self._clip = shape.is_first, shape.is_synchronous, shape.clip
        self._flow = flow
        self._admission = admission
        self._norms = norms
        self._boundary = boundary
        self._evaluations = evaluations
        self._evaluated_last = self._went_back = False
        self.splits = False
        """Whether backwards are split from now on."""

    def next(self) -> ins.Compute | None:
        """Return the next computation, to be asked for when nothing runs; None where the stage has to wait."""
        flow, boundary = self._flow, self._boundary
        held = False
        if not boundary.is_quiet:
            step = boundary.next_step(flow.version, flow.untouched)
            if step is not None:
                return step
            held = boundary.holds(flow.version)
        backwards = flow.backwards
        forward = False
        if not held:
            if backwards == flow.group_end:
                if flow.added != backwards:
                    return ins.RunWeightGradients(flow.added)
                if self._norms.is_ready(flow.version):
                    return ins.RunUpdate(flow.version, self._norms.known_norm_sq)
            else:
                if not self._is_synchronous or flow.may_forward:
                    forward = self._refusal() is None if self._is_first else flow.activations > flow.forwards
                backward = flow.gradients > backwards and not (forward and self._went_back)
                if backward and (not self._is_synchronous or flow.may_backward):
                    return self._backward()
        if self._evaluations.waiting and self._evaluations.is_ready and not (forward and self._evaluated_last):
            self._evaluated_last, self._went_back = True, False
            return self._evaluations.start()
        if forward and (backwards == flow.added or flow.has_room_to_forward):
            self._evaluated_last = self._went_back = False
            flow.forward_started()
            return ins.RunForward(flow.forwards)
        return ins.RunWeightGradients(flow.added) if backwards != flow.added else None

    def _backward(self) -> ins.Compute:
        """Return the backward of the oldest micro-batch that is ready, or what has to come before it."""
        flow = self._flow
        if self.splits and not (self._clip and self._shape.ends_group(flow.backwards)) and flow.has_room_to_split:
            self._went_back = True
            return ins.RunInputGradients(flow.backwards)
        if flow.added != flow.backwards:
            return ins.RunWeightGradients(flow.added)
        self._went_back = True
        return ins.RunBackward(flow.backwards)

    def _refusal(self) -> str | None:
        flow = self._flow
        return self._admission.refusal(flow.forwards, flow.in_flight, flow.version)

    def waits_for(self) -> str:
        """Return the name, one of WAITS, under which the ledger counts the time from now on, in which nothing is
        computed.
        """
        flow, boundary = self._flow, self._boundary
        if not boundary.is_quiet and boundary.holds(flow.version):
            return "lag"
        if flow.update_due:
            return "norm"
        if boundary.last_update == flow.version:
            return "drain"
        if self._is_first and flow.may_forward:
            return self._refusal() or "input"
        return "input"
