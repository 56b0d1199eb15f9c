"""`tfdpbc audit`: its plans, its answer and its exit status."""

import json

PLAN = ("--num-examples", 24, "--sampling", "shuffling", "--clip", "batch", "--batch-size", 12, "--epochs", 2)
PLAN = (*PLAN, "--noise-multiplier", 0.7, "--seed", 1)


def test_a_plan_that_holds(run):
    # False alarm: 1e-7.
    done = run("audit", *PLAN, "--runs", 40, "--confidence", 1 - 1e-7)
    assert done.exit_code == 0, done.output
    first, _, row = done.stdout.splitlines()
    assert first.startswith("40 + 40 trainings") and row.endswith("not refuted") and row.startswith("shuffling: ")


def test_half_the_noise_is_status_1(run):
    done = run("audit", *PLAN, "--runs", 300, "--noise-scale", 0.5, "--json")
    assert done.exit_code == 1 and done.stderr == ""
    answer = json.loads(done.stdout)
    (row,) = answer["audits"]
    assert answer["violated"] and row["violated"] and row["same_kind"] > row["claimed"]


def test_all_has_plans_of_its_own(run):
    done = run("audit", "--all", "--epochs", 3)
    assert done.exit_code == 2 and "leave out --epochs" in done.stderr


def test_what_is_refused(run, refused):
    assert run("audit", "--num-examples", 24).exit_code == 2
    assert "runs must be" in refused("audit", *PLAN, "--runs", 3, "--json")
    assert "clipping must be" in refused("audit", *PLAN, "--clipping", "scaled", "--json")
