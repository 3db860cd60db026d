"""Slipstream's own round under one schedule."""

from __future__ import annotations

from slipstream.check.attempts import attempt
from slipstream.check.outcome import Orders, Outcome, Problem
from slipstream.check.program import scheduler_of
from slipstream.check.rounds import RoundRun, explore_round, reference_tokens, run_round
from slipstream.device.soft.machine import Machine


class OwnRound:
    """The round on a tiny model. Making one makes the model, so that forks of this process have it."""

    def __init__(self) -> None:
        self._expected = reference_tokens()
        run_round()

    def schedule(self, seed: int | None) -> Outcome:
        """Run it under one schedule, program order if None; other text than the CPU's is a finding too."""
        runs: list[RoundRun] = []
        stop = attempt(lambda: runs.append(run_round(scheduler_of(seed))), Machine())
        if stop is not None:
            problem = stop if isinstance(stop, Problem) else None
            return Outcome(seed, 0, [] if isinstance(stop, Problem) else [stop.finding], problem)
        run = runs[0]
        findings = [finding.as_dict() for finding in run.report.findings]
        if run.tokens != self._expected:
            findings.append(self._other_tokens(run))
        return Outcome(seed, run.report.commands, findings)

    def orders(self, bound: int) -> Outcome:
        """Record two rounds of one request, and try `bound` orders of them at most."""
        found = explore_round(bound)
        findings = [finding.as_dict() for finding in found.findings]
        return Outcome(None, 0, findings, orders=Orders(found.orders, found.complete))

    def _other_tokens(self, run: RoundRun) -> dict[str, object]:
        request = next(n for n, tokens in enumerate(run.tokens) if tokens != self._expected[n])
        error = (
            f"; the run ended with {type(run.error).__name__}: {run.error}" if run.error is not None else ""
        )
        return {
            "kind": "tokens",
            "title": f"request {request} was answered with other tokens than on the CPU{error}",
            "streams": [],
            "ops": [],
            "buffer": None,
            "stacks": [],
            "missing": "",
            "order": [
                f"the CPU's: {self._expected[request]}",
                f"here: {run.tokens[request]}",
            ],
            "code": None,
        }
