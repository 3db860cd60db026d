"""What an engine did: tokens, rounds, accepted drafts by position, time. No torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from slipstream.graph.stats import GraphStats


@dataclass(slots=True)
class EngineStats:
    """Counts since the last reset. Times in nanoseconds.

    Attributes:
        graphs: routes, rows and times by phase.
        prompt_tokens, prefill_ns: prefill work.
        round_ns: rounds, from scheduling to published text.
        round_tokens: tokens that rounds gave to requests.
        rounds: rounds run.
        request_rounds: rounds, counted once a request.
        drafted, accepted: by position (from 0), how often a draft was verified, and held.
        advanced: tokens advanced a request and round, cut at a request's end or not.
        preemptions: requests that lost their pages and started again.
        catch_ups, catch_up_ns: how often a head was brought up to date with a request, and the time of that, which
            is part of the rounds'.
        kinds: rounds by who drafted: "plain", "ngram", "head" or "mixed".
    """

    graphs: GraphStats
    prompt_tokens: int = 0
    prefill_ns: int = 0
    round_ns: int = 0
    round_tokens: int = 0
    rounds: int = 0
    request_rounds: int = 0
    advanced: int = 0
    preemptions: int = 0
    catch_ups: int = 0
    catch_up_ns: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    drafted: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)

    def count_request(self, drafted: int, advanced: int) -> None:
        """Note one request's part of a round: drafts verified, tokens advanced."""
        self.request_rounds += 1
        self.advanced += advanced
        if drafted:
            self.drafted.update(range(drafted))
            self.accepted.update(range(min(drafted, advanced - 1)))

    @property
    def mean_advanced(self) -> float:
        """Tokens advanced a request and round; 0 before the first round."""
        return self.advanced / self.request_rounds if self.request_rounds else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """For each draft position: how often a draft there held, of those verified."""
        return [self.accepted[position] / count for position, count in sorted(self.drafted.items())]

    @property
    def host_share(self) -> float:
        """Time of rounds outside phases, over the time of rounds."""
        return 1 - self.graphs.phase_ns / self.round_ns if self.round_ns else 0.0

    def reset(self) -> None:
        """Forget everything but the captures."""
        self.graphs.reset()
        fresh = EngineStats(self.graphs)
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))
