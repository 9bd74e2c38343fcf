"""Table 2: everybody answers alike, and ours looks at each image once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.bench import random_models, shapes
from scripts.bench.figures import Options
from scripts.bench.figures.multimodal import Amount, run
from scripts.bench.questions import waves
from scripts.bench.results import Result
from scripts.bench.shapes import SHAPES, Tower
from tests.models.tiny_llava import make_tiny_llava

TINY = Tower(hidden=32, inner=48, layers=3, heads=2, image=28, patch=7)
AMOUNTS = {
    "images": Amount(scale=1, files=2, each=3, new=4),
    "videos": Amount(scale=1, files=2, each=2, new=4, frames=3),
}
CPU = Options(device="cpu")


@pytest.fixture
def tiny_shapes(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two shapes with a few thousand weights, and a tokenizer that needs no default model."""
    sizes = {"hidden": 64, "inner": 96, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 390}
    tiny = {name: replace(shape, **sizes, tower=TINY) for name, shape in SHAPES.items()}
    monkeypatch.setattr(random_models, "SHAPES", tiny)
    monkeypatch.setattr(shapes, "resolve_model", lambda name: tiny_model_dir)


def cells(result: Result, table: int, column: str) -> list[object]:
    rows = result.tables[table]
    return [row[rows.columns.index(column)] for row in rows.rows]


@pytest.mark.usefixtures("tiny_shapes")
def test_all_answer_alike_and_ours_sees_an_image_once() -> None:
    result = run(CPU, AMOUNTS)
    assert cells(result, 0, "equal answers") == ["6 of 6"] * 3
    assert cells(result, 1, "equal answers") == ["4 of 4"] * 3
    assert cells(result, 0, "encoded") == [2, 2, 6]
    assert cells(result, 1, "encoded") == [2, 2, 4]
    for table in (0, 1):
        cached, uncached, peer = cells(result, table, "hit rate")
        assert isinstance(cached, float) and cached > 0.2
        assert (uncached, peer) == (0, None)
    assert result.raw["videos"]["units"] == 4 * 3
    assert all(len(taken) == 1 for taken in result.raw["images"]["seconds"].values())
    assert [note.partition(":")[0] for note in result.notes] == ["Images", "Videos"]
    assert {len(bars) for bars in result.charts[0].series.values()} == {2}


@pytest.mark.usefixtures("tiny_shapes")
@pytest.mark.filterwarnings("ignore:load_format='dummy'")
def test_real_shapes_have_no_weights_in_files_and_everybody_their_own(tmp_path: Path) -> None:
    result = run(replace(CPU, real_shapes=True), {"images": AMOUNTS["images"]})
    assert cells(result, 0, "equal answers") == [None] * 3
    assert result.raw["images"]["answer_tokens"] == dict.fromkeys(
        ("ours", "no caches", "transformers"), [4] * 6
    )


def test_a_model_of_ones_own_answers_questions_of_the_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "images").mkdir(parents=True)
    (data / "llava_bench").mkdir()
    asked = [{"image": f"{i}.png", "text": f"question {j}"} for i in range(3) for j in range(3)]
    for i in range(3):
        waves(40, 30 + i, i).save(data / "images" / f"{i}.png")
    lines = "\n".join(map(json.dumps, asked))
    (data / "llava_bench" / "questions_local.jsonl").write_text(lines)
    model = make_tiny_llava(tmp_path / "model")
    amounts = {**AMOUNTS, "images": Amount(scale=1, files=2, each=2, new=3)}
    result = run(replace(CPU, model=str(model), data=data), amounts)
    assert len(result.tables) == 1  # it takes no videos
    assert result.tables[0].title == "4 questions about 2 images, 3 tokens each; model"
    assert cells(result, 0, "equal answers") == ["4 of 4"] * 3


def test_a_model_without_eyes_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(ValueError, match="table 2 takes"):
        run(replace(CPU, model=str(tiny_model_dir)), AMOUNTS)
