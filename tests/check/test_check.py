"""`slipstream check`: what is found, and merged, and said; each schedule from a clean state."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from slipstream.check.command import refusal
from slipstream.check.outcome import Outcome
from slipstream.check.report import MOST_SHOWN, CheckReport, collect
from slipstream.check.request import CheckRequest
from slipstream.check.worker import outcomes, warm_up

RACE = """
import torch

side = torch.npu.Stream()
hidden = torch.zeros(4, 8, device="npu")
with torch.npu.stream(side):
    hidden.add_(1)
print("sum", hidden.sum().item())
"""

CLEAN = """
import torch
import torch_npu

side = torch.npu.Stream()
hidden = torch.zeros(4, 8, device="npu")
side.wait_stream(torch.npu.current_stream())
with torch.npu.stream(side):
    hidden.add_(1)
torch.npu.current_stream().wait_stream(side)
assert hidden.sum().item() == 32
"""

LOST = """
import torch

a, b = torch.npu.Stream(), torch.npu.Stream()
gate = torch.npu.ExternalEvent()
for _ in range(2):
    gate.record(b)
    gate.wait(a)
torch.npu.synchronize()
"""


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """What the worker does before its first schedule."""
    threads = torch.get_num_threads()
    warm_up()
    yield
    torch.set_num_threads(threads)


class Scripts:
    """Writes programs into a folder, and runs them in forks of the test's process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, source: str, name: str = "program.py") -> str:
        path = self.folder / name
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return str(path)

    def outcomes(self, source: str, **options: object) -> list[Outcome]:
        request = CheckRequest(self.write(source), **{"schedules": 3, **options})  # type: ignore[arg-type]
        request.validate()
        return list(outcomes(request))

    def check(self, source: str, **options: object) -> CheckReport:
        request = CheckRequest(self.write(source), **{"schedules": 3, **options})  # type: ignore[arg-type]
        request.validate()
        return collect(request, list(outcomes(request)))


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


class TestFindings:
    def test_a_race_is_one_finding_for_all_schedules(self, scripts: Scripts) -> None:
        report = scripts.check(RACE, schedules=8)
        assert report.exit_code == 1
        first, second = report.findings
        assert first.finding["title"].startswith("write-write race")
        assert first.in_program_order
        assert first.seeds == list(range(8))
        assert second.finding["title"].startswith("write-read race")
        text = report.text()
        assert "program.py:7 in <module>: hidden.add_(1)" in text
        assert "wait_stream(default)" in text
        assert "shown by program order and 8 of 8 seeds" in text
        assert "the smallest order that shows it" in text
        assert text.endswith("2 findings in 9 schedules of 5 commands")

    def test_stacks_are_the_program_s_alone(self, scripts: Scripts) -> None:
        for merged in scripts.check(RACE).findings:
            for stack in merged.finding["stacks"]:
                assert [line.split(" in ")[1].split(":")[0] for line in stack] == ["<module>"]

    def test_a_clean_program(self, scripts: Scripts) -> None:
        report = scripts.check(CLEAN)
        assert report.exit_code == 0
        assert refusal(report) is None
        assert "nothing found in 4 schedules of" in report.text()

    def test_a_lost_opening_and_the_hang_that_it_leads_to(self, scripts: Scripts) -> None:
        report = scripts.check(LOST, schedules=10)
        found = {merged.finding["kind"]: merged for merged in report.findings}
        assert set(found) == {"lost-opening", "hang"}
        assert report.exit_code == 1
        hang = found["hang"]
        assert not hang.in_program_order
        assert 0 < len(hang.seeds) < 10

    def test_the_first_seed_shows_it_again(self, scripts: Scripts) -> None:
        report = scripts.check(LOST, schedules=10)
        hang = next(merged for merged in report.findings if merged.finding["kind"] == "hang")
        seed = hang.first_seed
        assert f"--schedules 1 --seed {seed}" in report.text()
        again = scripts.check(LOST, schedules=1, seed=seed)
        other = next(merged for merged in again.findings if merged.finding["kind"] == "hang")
        assert other.seeds == [seed]
        assert other.finding == hang.finding

    def test_what_the_device_refuses_is_a_finding(self, scripts: Scripts) -> None:
        report = scripts.check(
            """
            import torch
            x = torch.zeros(4, device="npu")
            graph = torch.npu.NPUGraph()
            with torch.npu.graph(graph):
                print(x.sum().item())
            """
        )
        assert report.exit_code == 1
        assert [merged.finding["code"] for merged in report.findings] == [107030]
        assert "program.py:6 in <module>" in report.text()

    def test_every_order_of_the_recorded_program(self, scripts: Scripts) -> None:
        report = scripts.check(LOST, schedules=0, exhaustive=100)
        assert report.orders is not None
        assert report.orders.complete
        assert report.orders.tried > 1
        hang = next(merged for merged in report.findings if merged.finding["kind"] == "hang")
        assert (hang.in_orders, hang.schedules) == (True, 0)
        assert "an order of the recorded program" in report.text()
        few = scripts.check(LOST, schedules=0, exhaustive=1)
        assert few.orders is not None
        assert not few.orders.complete
        assert "raise --exhaustive" in few.summary()

    def test_json_has_everything(self, scripts: Scripts) -> None:
        data = json.loads(json.dumps(scripts.check(RACE).data()))
        assert (data["clean"], data["schedules"], data["commands"]) == (False, 4, 5)
        finding = data["findings"][0]
        assert finding["first_seed"] == 0
        assert finding["schedules"] == 4
        assert finding["again"].startswith("slipstream check ")
        assert {"kind", "title", "streams", "ops", "buffer", "stacks", "missing", "order", "code"} <= set(
            finding
        )

    def test_of_many_findings_the_first_are_shown(self, scripts: Scripts) -> None:
        adds = "\n".join(f"with torch.npu.stream(ss[{n % 2}]): x.add_({n})" for n in range(40))
        report = scripts.check(
            f"import torch\nss = [torch.npu.Stream() for _ in range(2)]\nx = torch.zeros(2, device='npu')\n"
            f"torch.npu.synchronize()\n{adds}\n",
            schedules=1,
        )
        count = len(report.findings)
        assert count > MOST_SHOWN
        assert report.text().count("race: write-write") == MOST_SHOWN
        assert (
            f"{count - MOST_SHOWN} findings more ({count - MOST_SHOWN} race); --json has all" in report.text()
        )
        assert len(report.data()["findings"]) == count

    def test_what_a_race_led_to_under_a_seed_is_told_beside_it(self, scripts: Scripts) -> None:
        report = scripts.check(RACE + "assert hidden.sum().item() == 32, 'wrong'\n", schedules=10)
        assert report.exit_code == 1
        assert report.schedules == 11
        (text, seed, count), *_ = report.consequences
        assert "AssertionError: wrong" in text
        assert 0 < count < 10
        assert f"first under seed {seed}" in report.text()


class TestCleanState:
    def test_every_schedule_starts_anew(self, scripts: Scripts) -> None:
        scripts.write("seen = []\nseen.append(1)\n", "helper.py")
        results = scripts.outcomes(
            """
            import random, sys, threading
            import numpy, torch
            import helper
            assert __name__ == "__main__" and sys.modules["__main__"].helper is helper
            assert len(helper.seen) == 1 and not hasattr(torch, "marked")
            torch.marked = True
            helper.seen.append(2)
            x = torch.ones(2, device="npu") * torch.rand(1).item() * random.random() * numpy.random.rand()
            sys.exit(repr(x.sum().item()))
            """,
            schedules=0,
        )
        first = results[0].problem
        assert first is not None
        scripts.write("seen = []\nseen.append(1)\n", "helper.py")
        again = scripts.outcomes((scripts.folder / "program.py").read_text(), schedules=0)[0].problem
        assert again == first

    def test_no_schedule_sees_another(self, scripts: Scripts) -> None:
        report = scripts.check(
            """
            import torch
            assert not hasattr(torch, "marked")
            torch.marked = True
            torch.ones(2, device="npu").sum().item()
            """
        )
        assert report.exit_code == 0
        assert not hasattr(torch, "marked")

    def test_arguments_and_folder(self, scripts: Scripts) -> None:
        report = scripts.check(
            """
            import os, sys, torch
            assert sys.argv[1:] == ["--layers", "2"]
            assert sys.path[0] == os.path.dirname(os.path.abspath(__file__))
            torch.ones(2, device="npu").sum().item()
            """,
            arguments=("--layers", "2"),
        )
        assert report.exit_code == 0

    def test_threads_of_the_program_are_waited_for(self, scripts: Scripts) -> None:
        report = scripts.check(
            """
            import threading, time, torch
            x = torch.zeros(2, device="npu")
            def later():
                time.sleep(0.1)
                with torch.npu.stream(torch.npu.Stream()):
                    x.add_(1)
            threading.Thread(target=later).start()
            """,
            schedules=0,
        )
        assert report.commands == 2

    def test_a_host_that_asks_again_and_again(self, scripts: Scripts) -> None:
        report = scripts.check(
            """
            import torch
            x = torch.zeros(2, device="npu").add_(1)
            event = torch.npu.current_stream().record_event()
            while not event.query():
                pass
            """,
            schedules=10,
            timeout=10.0,
        )
        assert report.exit_code == 0

    def test_prints_are_kept_once(self, scripts: Scripts) -> None:
        results = scripts.outcomes(RACE + "import sys; print('words', file=sys.stderr)\n")
        assert [result.output for result in results] == ["sum 32.0\nwords\n", "", "", ""]


class TestRefusals:
    def refused(self, report: CheckReport) -> str:
        error = refusal(report)
        assert error is not None
        assert error.exit_code == 2
        assert report.exit_code == 2 or not report.commands
        return str(error)

    def test_a_program_that_raises(self, scripts: Scripts) -> None:
        report = scripts.check(
            """
            import torch
            def main():
                torch.zeros(2, device="npu").view(3)
            main()
            """
        )
        text = self.refused(report)
        assert "raised under program order: RuntimeError:" in text
        assert "program.py:4 in main" in text
        assert report.schedules == 1

    def test_a_program_that_exits_with_a_failure(self, scripts: Scripts) -> None:
        assert "exited with 3" in self.refused(scripts.check("import sys; sys.exit(3)"))
        assert scripts.check(CLEAN + "raise SystemExit(0)\n").exit_code == 0

    def test_a_program_that_loops(self, scripts: Scripts) -> None:
        report = scripts.check(
            """
            import torch
            x = torch.zeros(2, device="npu")
            def spin():
                while True:
                    pass
            spin()
            """,
            timeout=3.0,  # a busy machine may take more than one to come to the loop
        )
        text = self.refused(report)
        assert "did not end within 3 s and was stopped" in text
        assert "in spin" in text

    def test_orders_that_take_too_long(self, scripts: Scripts) -> None:
        report = scripts.check(
            LOST.replace("range(2)", "range(40)"), schedules=0, exhaustive=10**9, timeout=2.0
        )
        assert "under the recorded orders: it did not end within 2 s" in self.refused(report)
        assert report.schedules == 1

    def test_a_program_that_sleeps_in_a_thread(self, scripts: Scripts) -> None:
        report = scripts.check(
            "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()\n", timeout=1.0
        )
        assert "was stopped" in self.refused(report)

    def test_a_process_that_dies(self, scripts: Scripts) -> None:
        assert "SIGSEGV" in self.refused(
            scripts.check("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
        )
        assert "exit code 7" in self.refused(scripts.check("import os\nos._exit(7)\n"))

    def test_a_name_that_the_model_lacks(self, scripts: Scripts) -> None:
        text = self.refused(scripts.check("import torch\ntorch.npu.synchronise()\n"))
        assert "torch.npu.synchronise is not in the software NPU" in text
        assert "torch.npu.synchronize" in text
        assert 'slipstream.device.soft.register("synchronise", function)' in text
        assert "program.py:2" in text

    def test_a_module_that_the_model_lacks(self, scripts: Scripts) -> None:
        assert "torch_npu.optim" in self.refused(scripts.check("import torch_npu.optim\n"))

    @pytest.mark.parametrize("source", ["", "import torch\ntorch.ones(3).sum()\n", "print('hello')\n"])
    def test_a_program_that_has_nothing_to_check(self, scripts: Scripts, source: str) -> None:
        text = self.refused(scripts.check(source))
        assert "nothing to check" in text

    def test_a_program_that_reads_its_input(self, scripts: Scripts) -> None:
        assert "EOFError" in self.refused(scripts.check("input()\n"))


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "word"),
        [
            (b"def f(:\n", "line 1"),
            (b"\x00\x01\x02", "not Python"),
            (b"\xff\xfe\xfa", "not Python"),
            (b"# coding: nonsense\n", "not Python"),
        ],
    )
    def test_a_file_that_is_no_python(self, tmp_path: Path, content: bytes, word: str) -> None:
        path = tmp_path / "bad.py"
        path.write_bytes(content)
        with pytest.raises(Exception, match=word) as raised:
            CheckRequest(str(path)).validate()
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(Exception, match="is not there"):
            CheckRequest(str(tmp_path / "none.py")).validate()
        with pytest.raises(Exception, match="is a folder"):
            CheckRequest(str(tmp_path)).validate()

    @pytest.mark.parametrize(
        "values", [{"schedules": -1}, {"seed": -1}, {"exhaustive": -1}, {"timeout": 0.0}]
    )
    def test_values(self, tmp_path: Path, values: dict[str, float]) -> None:
        path = tmp_path / "fine.py"
        path.write_text("")
        with pytest.raises(Exception, match=f"{next(iter(values))} "):
            CheckRequest(str(path), **values).validate()  # type: ignore[arg-type]
