"""What is reached of Ray's private parts, each with its reason; the tests of this file name what the next Ray lacks.

No torch here: a controller, which every training run of Ray Train has in a process of its own, imports this file with its
callbacks, and would pay for torch with seconds and memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from ray._common.constants import RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR
from ray._private import ray_constants, services
from ray._private.authentication.authentication_token_setup import AUTH_MODE_ENV_VAR
from ray._private.node import Node
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]
from ray.experimental.internal_kv import _internal_kv_get
from ray.train.backend import Backend, BackendConfig
from ray.train.constants import RAY_TRAIN_ENABLE_STATE_TRACKING
from ray.train.v2._internal.constants import (
    DEFAULT_PREEMPTION_POLL_INTERVAL_S,
    ENABLE_PREEMPTION_WATCHER_ENV_VAR,
    PREEMPTION_POLL_INTERVAL_S_ENV_VAR,
    get_env_vars_to_propagate,
)
from ray.train.v2._internal.execution.callback import WorkerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.context import DistributedContext, get_train_context
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import state, worker_group
from ray.train.v2._internal.execution.worker_group.poll import _is_preempted_actor
from ray.train.v2._internal.execution.worker_group.worker import ActorMetadata, Worker
from ray.train.v2._internal.logging.logging import get_train_application_worker_log_path
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

# -- a private cluster ---------------------------------------------------------------------------------------------------

LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's environment variable whose 0 means, on every system, that nodes have the address of loopback."""

LOOPBACK = ("127.0.0.1", "::1")
"""The addresses that a node may have then."""

RAYLET = "raylet"
"""Name of the process that starts a node's workers and agents."""

CHILDREN_OF_A_RAYLET = (
    "ray::",
    "/ray/_private/workers/",
    "/ray/_private/runtime_env/agent/",
    "/ray/dashboard/agent.py",
)
"""What the command lines of a node's workers and agents hold, in the file where Ray is installed or as their titles: the
reaper finds by it those that nobody ends, for Ray tells nobody but the raylet which they are."""


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """Nothing of a private cluster listens beyond this machine.

    By default a node, even one that is alone, takes the address under which others would see it, and its processes then
    listen on all interfaces. Those of a node whose address is that of loopback listen there only. ``ray.init`` replaces a
    loopback address that it is given; Ray's switch for systems without clusters is obeyed everywhere. It is read when
    Ray is imported, here and in the processes that it starts.
    """
    if LOOPBACK_SWITCH in os.environ:  # what the user has set stays
        yield
        return
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    os.environ[LOOPBACK_SWITCH] = "0"
    try:
        yield
    finally:  # the next cluster may be a real one
        ray_constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(LOOPBACK_SWITCH, None)


def on_private_cluster() -> bool:
    """Whether nobody else can reach the cluster: it does not grow, and is ours alone."""
    return all(node["NodeManagerAddress"] in LOOPBACK for node in ray.nodes())


def set_auth_mode(mode: str | None) -> None:
    """Set Ray's ``RAY_AUTH_MODE`` here and for what this process starts; Ray has read it."""
    if mode is None:
        os.environ.pop(AUTH_MODE_ENV_VAR, None)
    else:
        os.environ[AUTH_MODE_ENV_VAR] = mode
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


REPORTS = "REPORTER_UPDATE_INTERVAL_MS"
"""Ray's environment variable that says how often an agent looks at every process of its node, for a dashboard."""


@contextlib.contextmanager
def without_helpers(dashboard: bool) -> Iterator[None]:
    """A private cluster is started without those of Ray's helpers that it has no use for, each a process that takes seconds.

    The log monitor sends lines to drivers, of which ours takes none; the monitor looks after clusters that grow; the server
    of a dashboard that is not shown would send statistics of use, and ``ray.init`` waits for it. No option leaves them out.
    The agent, which cannot be left out, looks once a day instead of every five seconds, a hundredth of a CPU.
    """
    unused = ["start_log_monitor", "start_monitor", *([] if dashboard else ["start_api_server"])]
    before = {name: getattr(Node, name) for name in unused}
    for name in unused:
        setattr(Node, name, lambda self, **options: None)
    seldom = not dashboard and REPORTS not in os.environ
    if seldom:
        os.environ[REPORTS] = "86400000"
    try:
        yield
    finally:
        if seldom:
            del os.environ[REPORTS]
        for name, start in before.items():
            setattr(Node, name, start)


@contextlib.contextmanager
def apart_from_signals() -> Iterator[None]:
    """A private cluster is started in process groups of its own.

    ``timeout``, a scheduler or a shell ends a command by a signal to its group, and a driver whose raylet has ended is ended by
    Ray at once, without a word. As Ray itself does where the system ends its processes with their driver, on Windows alone.
    """
    if sys.platform != "linux":  # Ray's reaper goes by the group
        yield
        return
    before = services.ConsolePopen
    services.ConsolePopen = partial(before, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = before


# -- a cluster that others share -----------------------------------------------------------------------------------------

CURRENT_CLUSTER = "ray_current_cluster"
"""File in which ``ray start`` writes the cluster's address. ``ray.init(address="auto")`` reads it too, but joins any head
that it finds among the machine's processes first."""

HEAD = "node:__internal_head__"
"""Resource that Ray gives to the head's node: nothing else tells which of ``ray.nodes()`` it is."""

MONITOR = "monitor.py"
"""File of Ray's autoscaler, a process on the head."""


def keep_statistics_here() -> None:
    """Ray Data's statistics on our node, which stays.

    They are kept by a detached actor on the node of the process that first reads data, one for the life of the cluster.
    On a node that the autoscaler has started for training, that node would never again be idle, and paid for ever.
    """
    from ray.data._internal.stats import get_or_create_stats_actor

    get_or_create_stats_actor()


def autoscaler_config(gcs_address: str) -> Path | None:
    """The file that the autoscaler of a cluster works from, where it is one of the processes of this machine.

    Ray publishes nowhere what an autoscaler may start; its command line names the file.
    """
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
        of_this_cluster = options.get("--gcs-address") == gcs_address and any(Path(w).name == MONITOR for w in words)
        if of_this_cluster and "--autoscaling-config" in options:
            file = Path(options["--autoscaling-config"]).expanduser()
            return file if file.is_file() else None
    return None


def monitored_node_types() -> dict[str, str]:
    """Type by id of every node that the monitor knows, which runs on every head, with an autoscaler or without.

    Without one it names each node's type after the node itself: that tells a cluster that cannot grow from one whose
    autoscaler runs elsewhere (on Kubernetes, in a container of its own).
    """
    status = _internal_kv_get(ray_constants.DEBUG_AUTOSCALING_STATUS)
    report = json.loads(status).get("autoscaler_report") if status else None
    return dict((report or {}).get("node_type_mapping") or {})


# -- Ray Train -----------------------------------------------------------------------------------------------------------

END_SECONDS = 15.0
"""A worker that is told to end (SIGTERM) and has not reached the end of a step by then ends all the same."""

SHUTDOWN_SECONDS = 4.5
"""How long a worker that Ray Train ends may take to save: Ray waits for five seconds."""

told_to_end = threading.Event()
"""Set when this worker has got SIGTERM, or its group is about to be ended."""

drained = threading.Event()
"""Set when the node of this worker is about to be taken away."""

UNUSED_CALLBACKS = {"PlacementGroupCleanerCallback", "DatasetsCallback"}
"""Ray Train's helpers that are an actor process each in every run, and not needed here: one polls the dashboard for a controller
that has died, to give back its room (:meth:`OwnTrainer.give_back`), one feeds datasets given to the trainer (ours are read by
the workers)."""


class EndOnSigterm(WorkerCallback):
    """Lets a worker that gets SIGTERM come to the end of its step and save, where Ray ends it at once.

    Only a process's main thread may set a handler. The train function runs in another, and Ray has no public hook before it.
    """

    def after_init_train_context(self) -> None:
        signal.signal(signal.SIGTERM, _sigterm)


def _sigterm(number: int, frame: Any) -> None:
    if not told_to_end.is_set():
        told_to_end.set()
        late = threading.Timer(END_SECONDS, os._exit, [128 + number])
        late.daemon = True
        late.start()


class Unasked(FixedScalingPolicy):
    """As many workers as were asked for, of which nobody is told. Ray Train's own policy tells an actor, a process that every
    cluster then has for its life, so that an autoscaler may start nodes and datasets of others leave room."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Without a client of that actor."""

    def _maybe_send_resource_request(self) -> None:
        """Nothing."""


class OwnTrainer:
    """Stands before a trainer among the bases of a class: without :data:`UNUSED_CALLBACKS`, with :class:`EndOnSigterm` and
    :class:`NamedRoom`; on a cluster that nobody else can reach with :class:`Unasked`; its run can be ended by another thread."""

    scaling_config: Any
    controller: Any = None
    ended = False

    @cached_property
    def placement(self) -> str:
        """What the names of the run's placement groups begin with."""
        return secrets.token_hex(8)

    def _initialize_and_run_controller(self, **options: Any) -> Any:
        """As Ray Train's own, which tells nobody of the controller but the main thread."""
        options["scaling_policy"] = self._policy(options["scaling_policy"])
        variables = {RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR: "0"} | get_env_vars_to_propagate()
        here = {ray._raylet.RAY_NODE_ID_KEY: ray.get_runtime_context().get_node_id()}
        kind = ray.remote(num_cpus=0, label_selector=here, runtime_env={"env_vars": variables})(TrainController)
        self.controller = kind.remote(**options)
        try:
            ray.get(self.controller.run.remote())
            return ray.get(self.controller.get_result.remote())
        except ray.exceptions.RayActorError:
            if not self.ended:  # whoever ends it does so when Ray still answers
                self.give_back()
            raise
        finally:
            self.controller = None  # its process ends with the last that knows of it

    def end(self) -> None:
        """End the run, if it goes on: its ``fit`` raises."""
        if (controller := self.controller) is not None:
            self.ended = True
            ray.kill(controller)

    def give_back(self, pending: bool = False) -> None:
        """Give back the room that the run still holds (``pending``: asks for): what a controller held that died, nobody else does
        before the driver ends, and the next run would wait for it."""
        for group in ray.util.placement_group_table().values():
            held = group["state"] == "PENDING" if pending else group["state"] != "REMOVED"
            if held and group["name"].startswith(f"{self.placement}-"):
                with contextlib.suppress(ValueError):  # it is gone
                    ray.util.remove_placement_group(ray.util.get_placement_group(group["name"]))

    def _policy(self, theirs: Any) -> Any:
        alone = on_private_cluster() and not self.scaling_config.elasticity_enabled
        return Unasked(self.scaling_config) if alone else theirs

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()  # type: ignore[misc]
        return [
            *(callback for callback in callbacks if type(callback).__name__ not in UNUSED_CALLBACKS),
            EndOnSigterm(),
            NamedRoom(self.placement),
        ]


class SlotsTrainer(OwnTrainer, DataParallelTrainer):
    """A run whose workers train apart: it needs no process group, and its controller no torch
    (``ray.train.data_parallel_trainer`` has that of older versions)."""


class _Apart(Backend):
    """A worker that dies is replaced alone, as Ray Train does for torchft; by default it ends all workers of its run."""

    has_replica_groups = True


class WorkersApart(BackendConfig):
    """For :class:`SlotsTrainer`."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _Apart


class _Unmet:
    """Stands for the actor in which the workers of a run wait for each other whenever they report: those that train apart
    never do, and it is a process more in every run."""

    def options(self, **options: Any) -> _Unmet:
        return self

    def remote(self, **options: Any) -> _Unmet:
        return self

    @property
    def reset(self) -> Any:
        """What is asked of it when a worker is replaced."""
        return SimpleNamespace(remote=lambda: ray.put(None))


class NamedRoom(WorkerGroupCallback):
    """In the controller of a run: names its requests for room, so that the driver knows which are of this run."""

    def __init__(self, placement: str) -> None:
        self.placement, self.groups = placement, 0

    @contextlib.contextmanager
    def on_worker_group_start(self) -> Iterator[None]:
        self.groups += 1  # the name of one that was just removed may still be taken
        worker_group.placement_group = partial(ray.util.placement_group, name=f"{self.placement}-{self.groups}")
        yield


class SlotsGroup(WorkerGroupCallback):
    """In the controller of a run whose workers train apart: says who died.

    Args:
        died: takes a worker's rank, what is known of its death, and whether its node was taken away.
    """

    def __init__(self, died: Callable[[int, str, bool], None]) -> None:
        self.died = died
        self.group: Any = None

    @contextlib.contextmanager
    def on_worker_group_start(self) -> Iterator[None]:
        worker_group.SynchronizationActor, state._shutdown_sync_actor = _Unmet(), lambda actor: None
        yield

    def after_worker_group_start(self, group: Any) -> None:
        self.group = group

    def after_worker_group_poll_status(self, status: Any) -> None:
        for rank, error in status.errors.items():
            self.died(rank, str(error), _is_preempted_actor(error))
        # Before one is replaced Ray asks all the others for an answer: two that died with their node would end the run.
        for index in status.failing_replica_group_indices:
            self.group.get_replica_groups()[index].shutdown()


class WatchOwnNode(WorkerCallback):
    """For a worker that trains apart, for which Ray Train watches no nodes: notices that its own is to be taken away, and
    gives training a moment to save where the worker is ended with its group."""

    def after_init_train_context(self) -> None:
        if ray_constants.env_bool(ENABLE_PREEMPTION_WATCHER_ENV_VAR, True):
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        seconds = float(os.environ.get(PREEMPTION_POLL_INTERVAL_S_ENV_VAR, DEFAULT_PREEMPTION_POLL_INTERVAL_S))
        node, over = ray.get_runtime_context().get_node_id(), threading.Event()
        while not over.wait(seconds):
            with contextlib.suppress(Exception):  # the head may not answer now
                if node in ray._private.state.state.get_draining_nodes():
                    drained.set()
                    return

    def before_worker_shutdown(self) -> None:
        training = get_train_context().execution_context.training_thread_runner._thread
        if training is not None and training.is_alive():
            told_to_end.set()
            training.join(SHUTDOWN_SECONDS)


class TrainPage:
    """In a worker that trains apart: each member as a run of its own in Ray's dashboard, whose runs know of
    slots alone. A member that goes on in another worker keeps its entry. Where states are not kept nothing is told."""

    def __init__(self) -> None:
        from ray.train.v2._internal.state.state_manager import TrainStateManager

        self.states = TrainStateManager() if ray_constants.env_bool(RAY_TRAIN_ENABLE_STATE_TRACKING, False) else None

    def begin(self, member: str, name: str) -> None:
        if self.states is None:
            return
        train, here = get_train_context(), ray.get_runtime_context()
        run, log, resources = (
            train.train_run_context,
            get_train_application_worker_log_path(),
            here.get_assigned_resources(),
        )
        self.states.create_train_run(
            member,
            name,
            here.get_job_id(),
            train.controller_actor._actor_id.hex(),
            log,
            run.run_config,
            None,
            replace(run.scaling_config, num_workers=1),
            run.backend_config,
            {},
            run.dataset_config,
        )
        node = here.get_node_id()
        place = ActorMetadata(
            socket.gethostname(), node, ray.util.get_node_ip_address(), os.getpid(), here.get_accelerator_ids()
        )
        alone = DistributedContext(world_rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0)
        self.states.create_train_run_attempt(member, member, 1, resources)
        self.states.update_train_run_attempt_running(
            member, member, [Worker(here.current_actor, place, resources, alone, log)]
        )
        self.states.update_train_run_running(member)

    def end(self, member: str, reason: str | None) -> None:
        if self.states is None:
            return
        if reason is None:
            self.states.update_train_run_attempt_finished(member, member)
            self.states.update_train_run_finished(member)
        else:
            self.states.update_train_run_attempt_errored(member, member, reason)
            self.states.update_train_run_errored(member, reason)


def node_is_drained() -> bool:
    """In a worker: whether a node of its run is about to be taken away.

    Public is ``ray.train.get_preemption_info``, which makes all workers meet in an actor, at every step.
    """
    return drained.is_set() or get_train_context().preemption_context.preemption_info is not None


# -- Ray Tune ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def uncounted_callbacks() -> Iterator[None]:
    """Ray Tune starts without counting the callbacks that it is given, for statistics of use that are off: to tell its own it
    imports MLflow, W&B, Comet and Aim, which takes seconds where they are installed."""
    from ray.air._internal import usage

    count, usage.tag_callbacks = usage.tag_callbacks, lambda callbacks: False
    try:
        yield
    finally:
        usage.tag_callbacks = count


KILLED_FOR_MEMORY = re.compile(r"Selected to kill: \(Actor\((\w+)\)")
"""Where the text of Ray's memory monitor names the actor that it has killed; the error itself does not."""


def actor_of(trial: Any) -> str:
    """Id of the actor that trains a trial of Ray Tune: the text of a kill for memory knows a trial by nothing else."""
    return str(trial.temporary_state.ray_actor._actor_id.hex())


def killed_actor(error: BaseException) -> str | None:
    """Id of the actor that was killed for want of memory; None where the text does not say."""
    match = KILLED_FOR_MEMORY.search(str(error))
    return match.group(1) if match else None
