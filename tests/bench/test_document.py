"""docs/benchmarks.md is what docs/results makes, and the script that makes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.bench import document as d
from scripts.bench.document import BENCHMARKS, Document, main
from scripts.bench.results import Chart, Result, Table

PAGE = """# Figures

## One

Prose before.

<!-- result one -->
<!-- end -->

Prose after.
"""


@pytest.fixture
def page(tmp_path: Path) -> Document:
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    return Document(tmp_path / "page.md", tmp_path / "results", tmp_path / "pictures" / "bench")


def result(seconds: float, *, charts: int = 1) -> Result:
    return Result(
        tables=[
            Table(["way", "s"], [["ours", seconds]], title="Seconds"),
            Table(["n"], [[1000]], title="Counts", is_detail=True),
        ],
        charts=[
            Chart("bars", f"Bars {i}", "", "s", ["x"], {"a": [seconds]}) for i in range(charts)
        ],
        notes=["1 of 1 equal"],
        pictures={"tree": "<svg/>"},
        title="The first",
        command="python -m scripts.bench one",
        machine={"cpu": "some", "date": "2026-01-02"},
    )


def test_the_committed_page_is_what_its_results_make() -> None:
    main(["--check"])
    assert sorted(BENCHMARKS.places()) == sorted(f.stem for f in BENCHMARKS.results.glob("*.json"))


def test_the_committed_pictures_are_those_of_the_results() -> None:
    expected: dict[str, str] = {}
    for name in BENCHMARKS.places():
        its = Result.load(BENCHMARKS.results / f"{name}.json")
        expected |= d.pictures(name, its)
        for picture, svg in its.pictures.items():
            file = BENCHMARKS.pictures / f"{name}-{picture}.svg"
            assert file.read_text(encoding="utf-8") == svg
    assert {file.stem for file in BENCHMARKS.pictures.glob("*")} == set(expected)


def test_no_committed_result_is_without_its_command_and_its_machine() -> None:
    for name in BENCHMARKS.places():
        its = Result.load(BENCHMARKS.results / f"{name}.json")
        assert re.match(r"(OMP_NUM_THREADS=\d+ )?python -m scripts\.bench[. ]", its.command), name
        assert {"cpu", "minisgl", "torch", "date"} <= its.machine.keys(), name


def test_a_result_becomes_a_block_and_prose_stays(page: Document, tmp_path: Path) -> None:
    result(1.25).save(tmp_path / "out" / "one.json")
    main([str(tmp_path / "out")], page)
    assert page.text() == PAGE.replace(
        "<!-- result one -->\n",
        "<!-- result one -->\n"
        "`python -m scripts.bench one`: cpu some, date 2026-01-02\n\n"
        "*Seconds*\n\n"
        "| way | s |\n|---|---|\n| ours | 1.25 |\n\n"
        "<details><summary>Counts</summary>\n\n| n |\n|---|\n| 1,000 |\n\n</details>\n\n"
        "- 1 of 1 equal\n\n"
        "![Bars 0](pictures/bench/one-1.svg)\n\n"
        "![The first: tree](pictures/bench/one-tree.svg)\n",
    )
    assert (page.pictures / "one-tree.svg").read_text(encoding="utf-8") == "<svg/>"
    assert ">Bars 0<" in (page.pictures / "one-1.svg").read_text(encoding="utf-8")
    main(["--check"], page)


def test_a_newer_result_replaces_text_and_pictures(page: Document, tmp_path: Path) -> None:
    result(1.25, charts=2).save(tmp_path / "out" / "one.json")
    main([str(tmp_path / "out")], page)
    result(2.5).save(tmp_path / "out" / "one.json")
    main([str(tmp_path / "out"), "one"], page)
    assert "2.50" in page.text() and "1.25" not in page.text()
    assert {file.name for file in page.pictures.iterdir()} == {"one-1.svg", "one-tree.svg"}


def test_check_fails_where_a_number_was_changed_by_hand(page: Document, tmp_path: Path) -> None:
    result(1.25).save(tmp_path / "out" / "one.json")
    main([str(tmp_path / "out")], page)
    page.page.write_text(page.text().replace("1.25", "0.25"), encoding="utf-8")
    with pytest.raises(SystemExit, match="not what its results make"):
        main(["--check"], page)
    assert "0.25" in page.text()


def test_what_has_no_place_is_named_and_left(
    page: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        result(1.0).save(tmp_path / "out" / f"{name}.json")
    main([str(tmp_path / "out")], page)
    assert "two: no place in page.md" in capsys.readouterr().out
    assert [file.name for file in page.results.iterdir()] == ["one.json"]


def test_mistakes_in_the_page_and_the_command_are_named(page: Document, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="a place for 'one'"):
        page.made()
    with pytest.raises(SystemExit):
        main([str(tmp_path), "three"], page)
    page.page.write_text(PAGE.replace("<!-- end -->\n", ""), encoding="utf-8")
    with pytest.raises(ValueError, match="without its <!-- end -->"):
        page.made()
