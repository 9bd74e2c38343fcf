"""The command that measures figures: its checks, what it writes, and how it bears a failure."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from pathlib import Path

import pytest

from minisgl import __version__
from scripts.bench import __main__ as bench
from scripts.bench import charts, figures
from scripts.bench.figures import FIGURES, Options
from scripts.bench.results import Chart, Result, Table, command_line

ROOT = Path(__file__).parents[2]


def made_up() -> Result:
    return Result(
        tables=[
            Table.of([{"way": "ours", "s": 1.0, "n": 1000}, {"way": "b|c", "s": None, "n": 2}])
        ],
        charts=[
            Chart("bars", "Ratios", "", "times", ["x", "y"], {"a": [1.0, 2.0], "b": [None, 0.5]}),
            Chart("lines", "Growth", "batch", "ms", [1, 8], {"a": [1.5, 3.0]}, is_log=True),
        ],
        notes=["2 of 2 answers equal"],
        pictures={"tree": "<svg/>"},
        raw={"seconds": [0.5, 0.25]},
    )


@pytest.fixture
def two_figures(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Instead of the real ones: "good", and before it "bad", which fails; the options they got."""
    seen: list[Options] = []

    def run(options: Options) -> Result:
        seen.append(options)
        return made_up()

    def fail(options: Options) -> Result:
        raise RuntimeError("no such luck")

    for name, function in (("bad", fail), ("good", run)):
        module = types.ModuleType(f"scripts.bench.figures.{name}_module")
        module.TITLE, module.run = name.title(), function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(bench, "FIGURES", {"bad": "bad_module", "good": "good_module"})
    monkeypatch.setattr(figures, "FIGURES", bench.FIGURES)
    return seen


def test_a_figure_leaves_json_charts_and_pictures(
    two_figures: list[Options], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.main(["good", "--quick", "--rounds", "3", "--data", str(tmp_path), "--out",
                str(tmp_path / "out")])  # fmt: skip
    assert two_figures == [Options(quick=True, rounds=3, data=tmp_path)]
    files = {file.name for file in (tmp_path / "out").iterdir()}
    drawn = {f"good-{i}.{kind}" for i in (1, 2) for kind in ("svg", "png")}
    assert files == {"good.json", "good-tree.svg"} | drawn
    result = Result.load(tmp_path / "out" / "good.json")
    expected = made_up()
    expected.title, expected.machine, expected.command = "Good", result.machine, result.command
    assert result == expected
    assert {"cpu", "torch", "threads", "date"} <= result.machine.keys()
    assert result.machine["minisgl"] == __version__, "also where it is not installed"
    # The directory is this machine's business; what the reader types is not.
    shown = f"python -m scripts.bench good --quick --data {tmp_path.name.upper()} --rounds 3"
    assert result.command.endswith(shown)
    printed = capsys.readouterr().out
    assert "| ours | 1.00 | 1,000 |" in printed and "| b\\|c | - | 2 |" in printed
    assert "- 2 of 2 answers equal" in printed and "good-1.svg" in printed


def test_without_matplotlib_all_but_the_charts_is_there(
    two_figures: list[Options],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    bench.main(["good", "--out", str(tmp_path)])
    assert {file.name for file in tmp_path.iterdir()} == {"good.json", "good-tree.svg"}
    printed = capsys.readouterr().out
    assert "2 charts not drawn" in printed and "minisgl[bench]" in printed


def test_all_goes_on_after_a_figure_that_fails(
    two_figures: list[Options], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="failed: bad"):
        bench.main(["all", "--out", str(tmp_path)])
    assert (tmp_path / "good.json").exists() and not (tmp_path / "bad.json").exists()
    assert "no such luck" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["8z"], "no figure '8z'; there are all, 3, 4, 5"),
        (["5", "--rounds", "0"], "rounds 0: at least 1"),
        (["5", "--data", "nowhere"], "data 'nowhere': not a directory"),
        (["5", "--peer", "vlm"], "peer 'vlm': there are transformers, "),
        (["5", "--peer", "vllm=/no/python"], "peer 'vllm': '/no/python' is not a program"),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert said in capsys.readouterr().err


def test_the_list_imports_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys; from scripts.bench.__main__ import main; main(['--list'])\n"
        "assert not {'torch', 'minisgl', 'numpy', 'matplotlib'} & set(sys.modules), sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_says_what_it_is_and_runs_with_options(name: str) -> None:
    source = (ROOT / "scripts" / "bench" / "figures" / f"{FIGURES[name]}.py").read_text("utf-8")
    tree = ast.parse(source)
    assert len((ast.get_docstring(tree) or "").splitlines()) > 3 and figures.title(name)
    (run,) = (f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == "run")
    assert run.args.args[0].arg == "options"
    assert len(run.args.args) - len(run.args.defaults) == 1


def test_a_chart_is_the_same_bytes_each_time_and_says_its_values(tmp_path: Path) -> None:
    for chart in made_up().charts:
        first, second = (charts.write(chart, tmp_path / n, ("svg",))[0] for n in ("a", "b"))
        svg = first.read_text(encoding="utf-8")
        assert svg == second.read_text(encoding="utf-8")
        assert f">{chart.title}<" in svg
    bars = charts.write(made_up().charts[0], tmp_path / "bars", ("svg",))[0].read_text("utf-8")
    assert all(f">{label}<" in bars for label in ("1", "2", "0.5", "x", "y", "a", "b"))


def test_a_chart_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'pie': bars or lines"):
        Chart("pie", "Shares", "", "", [], {})


def test_a_command_names_no_place_of_the_machine_it_ran_on() -> None:
    arguments = ["x", "--data", "/srv/data", "--llama", "/opt/v/bin/python", "build/f16.gguf"]
    assert command_line("scripts.bench.generate", arguments, {}) == (
        "python -m scripts.bench.generate x --data DATA --llama PYTHON build/f16.gguf"
    )
