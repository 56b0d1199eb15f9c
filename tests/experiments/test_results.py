"""The file of finished trainings: what is found again, what an interruption may leave behind."""

import json
import threading

import pytest

from tfdpbc.errors import RunFolderError
from tfdpbc.experiments.results import Results

RUN = {"config": {"norm": 0.2, "claimed": (1, 2)}, "epochs": 2, "examples": None, "seed": 0}
HISTORY = [{"epoch": 1, "accuracy": 10.0, "loss": float("nan")}]


def test_what_was_added_is_found(tmp_path):
    results = Results(tmp_path / "new" / "folder")
    assert results.rows() == [] and results.find(RUN) is None
    results.add(RUN, HISTORY, setting="a", seconds=1.5)
    results.add({**RUN, "seed": 1}, HISTORY)
    found = Results(results.folder).find(RUN)
    assert found["setting"] == "a" and found["history"] == [{"epoch": 1, "accuracy": 10.0, "loss": None}]
    assert results.find({**RUN, "epochs": 3}) is None and len(results.rows()) == 2
    for line in results.path.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # strict JSON: no NaN


@pytest.mark.parametrize("torn", ['{"run": {"con', "[1, 2]\n", '{"run": {}, "history": []}'])
def test_a_torn_line_is_run_anew_and_harms_no_other(tmp_path, torn):
    results = Results(tmp_path)
    results.add(RUN, HISTORY)
    with results.path.open("a") as file:
        file.write(torn)
    results.add({**RUN, "seed": 1}, HISTORY)
    with pytest.warns(UserWarning, match="line 2 is no result"):
        assert [row["run"]["seed"] for row in results.rows()] == [0, 1]


def test_several_writers_lose_nothing(tmp_path):
    def write(seed):
        for epoch in range(20):
            Results(tmp_path).add({**RUN, "seed": seed, "epochs": epoch}, HISTORY * 50)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(r["run"]["seed"], r["run"]["epochs"]) for r in Results(tmp_path).rows()}) == 80


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(RunFolderError, match="out must be a folder"):
        Results(tmp_path / "out")
