# SPDX-License-Identifier: Apache-2.0
"""The agent's main loop: look, plan, act, report. The loop runs after each change, and at an interval.

An Agent owns its threads from `start` to `close`. Events elsewhere only wake up the loop, which decides by the state
that it then finds.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from uuid import UUID

from vgpumgr import probe_results
from vgpumgr.cards import Card
from vgpumgr.control.listed import Unusable, unusable
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.notify import notify
from vgpumgr.wire.common import TIMESLICE_US_MAX
from vgpumgr_agent import documents, faults, kernel_events, metrics, places, placing, report, udev
from vgpumgr_agent.actions import Actions, Outcome
from vgpumgr_agent.api import Api
from vgpumgr_agent.attempts import Attempts
from vgpumgr_agent.backends import Observed, ObservedGpu, SliceBackend
from vgpumgr_agent.config import Config
from vgpumgr_agent.control_plane import ControlPlane
from vgpumgr_agent.documents import Kept
from vgpumgr_agent.executions import FAILED, Ends, Executions, Standing
from vgpumgr_agent.grace import Grace
from vgpumgr_agent.hook.admission import Hooks
from vgpumgr_agent.meter_store import Meter
from vgpumgr_agent.reconcile import Action, Orphans, Wanted, bindings, lacking, orphans, plan
from vgpumgr_agent.refused import Refused, UnavailableError
from vgpumgr_agent.released import Released
from vgpumgr_agent.report import SliceError
from vgpumgr_agent.reporter import Reporter
from vgpumgr_agent.store import COPIED, Store

log = logging.getLogger(__name__)

_PASSES_MAX = 4

SWITCHES_PER_TIMESLICE = 20
"""The least length of a timeslice, in costs of a switch, so that switching takes at most a twentieth of a GPU."""


class AgentFailedError(Exception):
    """A part of the agent failed because of a bug. Restart the agent."""


class Agent:
    """A host's agent. The caller supplies its parts."""

    def __init__(
        self,
        *,
        config: Config,
        store: Store,
        meter: Meter,
        backend: SliceBackend,
        sysfs: Sysfs,
        api: Api,
        others: Callable[[], Sequence[ObservedGpu]] = tuple,
    ) -> None:
        """`others`: returns the GPUs of this host that are not shared."""
        self._config = config
        self._store = store
        self._meter = meter
        self._backend = backend
        self._others = others
        self._sysfs = sysfs
        self._boot_id = UUID(sysfs.boot_id())
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._released = Released()
        self._grace = Grace(lambda: store.clock.now().boottime_s)
        self._attempts = Attempts(lambda: store.clock.now().boottime_s)
        self._executions = Executions(lambda: store.clock.now().boottime_s)
        self._executors: Mapping[UUID, Standing] = {}
        self._places: Mapping[UUID, Standing] = {}
        self._ends = Ends(self.wake)
        acting = threading.Lock()
        self._actions = Actions(
            backend=backend,
            store=store,
            meter=meter,
            released=self._released,
            executions=self._executions,
            acting=acting,
        )
        self.control_plane = ControlPlane(
            api=api,
            store=store,
            meter=meter,
            token_file=config.enroll_token_file,
            boot_id=self._boot_id,
            wake=self.wake,
            stop=self._stop,
        )
        self.reporter = Reporter(
            api=api,
            store=store,
            stop=self._stop,
            counters_s=config.counters_interval_s,
            renew_soon=self.control_plane.renew_soon,
        )
        self.hooks = Hooks(
            store=store,
            backend=backend,
            sysfs=sysfs,
            control=self.control_plane,
            released=self._released,
            acting=acting,
            look=self._look,
            wake=self.wake,
        )
        self._failed: list[str] = []
        self._seq = 0
        self._gpus: Sequence[ObservedGpu] = ()
        self._unshared: Sequence[ObservedGpu] = ()
        self._for_processes = config.host_settings().for_processes()
        self._aside: places.Aside = {}
        self._unusable: Sequence[Unusable] = ()
        self._problems: frozenset[str] = frozenset()
        self._unwritten = ""

    def wake(self) -> None:
        """Trigger a comparison at once."""
        self._woken.set()

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stop.set()
        self._woken.set()

    def run(self) -> None:
        """Serve until `stop` is called. Raises AgentFailedError.

        Threads that wait for the API may run a little longer; they hold no resources.
        """
        bodies = {
            "desired": self.control_plane.follow,
            "reports": self.reporter.deliver,
            "usage": self.control_plane.tell_usage,
            "udev": lambda: udev.watch(self.wake, self._stop),
            "events": lambda: kernel_events.watch(self.wake, self._stop),
            "executors": lambda: self._ends.watch(self._stop),
        }
        ready = False
        while not self._stop.is_set():
            self._woken.clear()
            self.reconcile()
            if not ready:
                for name, body in bodies.items():
                    threading.Thread(target=self._part, args=(body,), name=name, daemon=True).start()
                ready = True
                notify(ready=True)
            notify(watchdog=True, status=self._status())
            standings = {**self._executors, **self._places}
            self._woken.wait(min(self._config.report_interval_s, self._executions.look_again_s(standings)))
        notify(stopping=True)
        if self._failed:
            raise AgentFailedError(f"{', '.join(self._failed)} failed; see the log above")

    def _part(self, body: Callable[[], None]) -> None:
        try:
            body()
        except Exception:
            log.exception("unexpected")
            self._failed.append(threading.current_thread().name)
            self.stop()

    def reconcile(self) -> None:
        """Look, plan and act until nothing is left to do, then report. Never raises for a possible host state."""
        self._store.flush()
        refusals = [*self._unkept(), *self._bind_gpus(), *map(str, self._unusable)]
        try:
            self._reconcile(refusals)
        except (Refused, UnavailableError) as error:
            refusals.insert(0, error.reason)
            self._executors = self._places = {}
            self._note(refusals)
            self._show(None)
            self._report_blind(error, refusals)

    def _unkept(self) -> list[str]:
        """Return why state is only in memory and not on disk."""
        return [trouble for trouble in (self._store.trouble, self._meter.trouble) if trouble]

    def _bind_gpus(self) -> list[str]:
        """Bind listed GPUs that are not bound. Remember unusable GPUs. Return the refusals."""
        self._unusable = unusable(self._sysfs)
        refusals: list[str] = []
        if actions := bindings(self._unusable, due=self._attempts.due([found.gpu for found in self._unusable])):
            with contextlib.suppress(UnavailableError):  # the next look at the host reports this
                refusals = self._actions.run(actions).refusals
            self._unusable = unusable(self._sysfs)
        return refusals

    def _look(self) -> Observed:
        """Look at this host, and record where its cards are. Raises Refused, UnavailableError."""
        observed = self._meter.watch(self._backend.observe)
        self._store.on_machine(observed.machine)
        others = self._others()
        cards = placing.cards_of(observed, others)
        self._store.see(cards)
        gpus = {address: self._measured(gpu, cards[address]) for address, gpu in observed.gpus.items()}
        unshared = [replace(gpu, **asdict(cards[gpu.address])) for gpu in others if gpu.address not in gpus]
        aside = places.set_aside(unshared, gpus, self._for_processes)
        self._aside = {address: self._measured(gpu, cards[address]) for address, gpu in aside.items()}
        self._unshared = [self._aside.get(gpu.address, gpu) for gpu in unshared]
        return replace(observed, gpus=gpus)

    def _measured(self, gpu: ObservedGpu, card: Card) -> ObservedGpu:
        """Add what is known of a GPU's card, and raise the minimum timeslice to suit the cost of a switch."""
        cost_us = probe_results.switch_cost_us(self._sysfs.paths.probes, card.uuid)
        least_us = max(gpu.timeslice_min_us, min(SWITCHES_PER_TIMESLICE * cost_us, TIMESLICE_US_MAX))
        return replace(gpu, **asdict(card), switch_cost_us=cost_us, timeslice_min_us=least_us)

    def _reconcile(self, refusals: Sequence[str]) -> None:
        kept, written = self._store.kept, self._store.written
        observed = self._look()
        kept = kept and documents.placed(kept, self._store.cards)
        self.hooks.note_expired(observed)
        total = Outcome()
        for _ in range(_PASSES_MAX):
            actions = self._plan(kept, observed)
            if not actions:
                break
            faults.point("reconcile.planned")
            outcome = self._actions.run(actions)
            total.refusals, total.slices = outcome.refusals, outcome.slices
            kept, written = self._store.kept, self._store.written
            observed = self._look()
            kept = kept and documents.placed(kept, self._store.cards)
            if not outcome.done:
                break
        self._gpus = list(observed.gpus.values())
        self._watch_executors(observed)
        self._places = places.standings(observed)
        self._prove(kept, observed)
        wanted = kept.wanted() if kept else Wanted()
        absent = placing.absent(wanted.slices, self._store.cards)
        absent += places.troubles(self._aside, observed.gpus, self._for_processes)
        copied = [COPIED] if self._store.copied else []
        total.refusals = [*copied, *refusals, *absent, *total.refusals, *_unclaimed(kept, observed)]
        self._note([*total.refusals, *(f"slice {uuid}: {error.text}" for uuid, error in total.slices.items())])
        self._show(observed)
        self._seq += 1
        self.reporter.report(
            report.build(
                observed=observed,
                kept=written,
                others=self._unshared,
                refusals=total.refusals,
                errors={
                    **_not_executed(self._executors),
                    **_misplaced(wanted, observed, frozenset(self._aside)),
                    **self.hooks.failed(),
                    **_in_use(kept, observed),
                    **total.slices,
                },
                executors={**self._executors, **self._places},
                agent_epoch=self._store.agent_epoch,
                seq=self._seq,
            )
        )

    def _watch_executors(self, observed: Observed) -> None:
        self._executions.keep_only(observed.slices)
        self._executors = self._executions.standings(observed)
        self._ends.follow([found.pid for found in observed.executors.values() if found.pid])

    def _prove(self, kept: Kept | None, observed: Observed) -> None:
        if kept is not None:
            self._store.prove(kept, {gpu: observed.taken(gpu) for gpu in [*observed.gpus, *self._aside]})
            doubted = [claim.slice for claim in kept.claims if claim.unproven and places.is_for_processes(claim.slice)]
            if not all(self._store.standing(claim.id).unproven for claim in doubted):
                self.wake()  # nothing else triggers the creation of places for these claims

    def _plan(self, kept: Kept | None, observed: Observed) -> list[Action]:
        released = self._released.all()
        self._released.keep_only(observed.slices, known=released)
        if kept is None or self._store.copied:
            return []
        wanted = kept.wanted()
        overdue = self._grace.overdue(orphans(wanted, observed) if self._store.fresh() else Orphans())
        executed = self._executions.due(lacking(wanted, observed, released=released))
        leased = frozenset(claim.id for claim in wanted.slices if self._store.standing(claim.id).lease_left_s)
        return [
            *plan(wanted, observed, released=released, overdue=overdue, executed=executed),
            *places.plan(kept, observed, gpus=frozenset(self._aside), leased=leased, overdue=overdue),
        ]

    def _report_blind(self, error: Refused | UnavailableError, refusals: Sequence[str]) -> None:
        """Report that the host cannot be observed.

        If the module refuses, we have no GPUs. If the helper is away, the last known GPUs are reported.
        """
        self._seq += 1
        self.reporter.report(
            report.blind(
                boot_id=self._boot_id,
                gpus=() if isinstance(error, Refused) else self._gpus,
                refusals=refusals,
                agent_epoch=self._store.agent_epoch,
                seq=self._seq,
            )
        )

    def _note(self, problems: Sequence[str]) -> None:
        """Log each new problem once."""
        for problem in sorted(set(problems) - self._problems):
            log.warning("%s", problem)
        self._problems = frozenset(problems)

    def _show(self, observed: Observed | None) -> None:
        """Write metrics if a file is configured. A failure is logged once."""
        path, kept = self._config.metrics_file, self._store.kept
        if path is None:
            return
        state = metrics.State(
            observed=observed,
            orphans=Orphans() if observed is None or kept is None else orphans(kept.wanted(), observed),
            unusable=self._unusable,
            executors=self._executors,
            problems=len(self._problems),
            unkept=len(self._unkept()),
            copied=self._store.copied,
            api_reachable=not self.control_plane.trouble,
            contact_s=self._store.contact_s,
            certificate_s=self._store.certificate_s,
            told=self.reporter.counts.copy(),
            at_s=time.time(),
        )
        before, self._unwritten = self._unwritten, ""
        try:
            metrics.write(path, metrics.text(state))
        except OSError as error:
            self._unwritten = f"no metrics: {path}: {error.strerror}; let the agent's user write there"
            if self._unwritten != before:
                log.warning("%s", self._unwritten)

    def _status(self) -> str:
        trouble = self.control_plane.trouble
        return "; ".join([f"{len(self._gpus)} GPUs", f"API {trouble or 'reachable'}", *sorted(self._problems)])[:500]


def _unclaimed(kept: Kept | None, observed: Observed) -> list[str]:
    """Return a line for each device of ours with neither claim nor tombstone. Unused ones are removed, see `grace`."""
    wanted = kept.wanted() if kept else Wanted()
    known = wanted.tombstones | {claim.id for claim in wanted.slices}
    return [
        f"slice {uuid}: a device with neither claim nor tombstone: removed when no VM uses it, unless the API names it"
        for uuid, found in sorted(observed.slices.items())
        if found.recorded and uuid not in known
    ]


def _not_executed(executors: Mapping[UUID, Standing]) -> dict[UUID, SliceError]:
    return {
        uuid: SliceError(f"its executor does not run: {each.reason or 'see the log of vgpumgr-agent'}")
        for uuid, each in executors.items()
        if each.state == FAILED
    }


def _misplaced(wanted: Wanted, observed: Observed, gpus: frozenset[str]) -> dict[UUID, SliceError]:
    return {uuid: SliceError(error) for uuid, error in places.errors(wanted, observed, gpus=gpus).items()}


def _in_use(kept: Kept | None, observed: Observed) -> dict[UUID, SliceError]:
    dead = kept.wanted().tombstones if kept else frozenset()
    return {
        uuid: SliceError("deleted, and in use by a VM: removed when that stops")
        for uuid, found in observed.slices.items()
        if uuid in dead and found.open
    }
