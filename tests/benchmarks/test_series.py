"""Colours of the dashboard follow the noise: a step beyond it is red, the same noise without a step is green."""

from __future__ import annotations

import json
import random

import pytest
from benchmarks.dashboard import pages as dashboard
from benchmarks.dashboard.series import Series


def series(ours, noise=0.0, limits=(), **others):
    """A benchmark with the given seconds of ours, and constant ones of others, all with noise."""
    randoms = random.Random(0)

    def noisy(values):
        return [value * (1 + noise * randoms.uniform(-1, 1)) if value else value for value in values]

    seconds = {"ours": noisy(ours)} | {name: noisy([value] * len(ours)) for name, value in others.items()}
    commits = [f"{place:040x}" for place in range(len(ours))]
    return Series("tracked.X.time_run", "X", "about X", tuple(limits), "less", commits, seconds)


def test_a_benchmark_that_stays_faster_is_green():
    assert series([1.0] * 20, noise=0.05, torch=2.0, reference=3.0).faults() == []


def test_a_step_beyond_the_noise_is_red():
    [fault] = series([1.0] * 16 + [1.3] * 4, noise=0.02, torch=2.0).faults()
    assert fault.endswith("slower than it was")
    assert 25 < float(fault.split("%")[0]) < 35


def test_the_same_step_within_the_noise_is_green():
    assert series([1.0] * 16 + [1.3] * 4, noise=0.5, torch=9.0).faults() == []


def test_one_slow_moment_is_not_a_regression():
    assert series([1.0] * 19 + [1.8], noise=0.02, torch=2.0).faults() == []


def test_a_machine_that_is_slower_for_all_is_not_a_regression():
    one = series([1.0] * 20, noise=0.02, torch=2.0)
    one.seconds = {name: [*values[:16], *[3 * value for value in values[16:]]] for name, values in one.seconds.items()}
    assert one.faults() == []


@pytest.mark.parametrize(("others", "kept"), [([2.0] * 20, True), ([2.0] * 12 + [3.2] * 8, False)])
def test_asvs_list_keeps_a_regression_of_times_only_if_the_ratios_show_it(tmp_path, others, kept):
    one = series([1.0] * 12 + [1.6] * 8, noise=0.02, torch=2.0)
    one.seconds["torch"] = others
    entry = ["tracked.X.time_run('ours')", "graphs/x.json", {}, 0, 1.6, 1.0, [[40, 44, 1.0, 1.6]]]
    (tmp_path / "index.json").write_text(json.dumps({"revision_to_hash": {"44": one.commits[12]}}))
    (tmp_path / "regressions.json").write_text(json.dumps({"regressions": [entry]}))
    (tmp_path / "regressions.xml").write_text("<feed/>")
    dashboard.keep_confirmed_regressions([one], tmp_path)
    listed = json.loads((tmp_path / "regressions.json").read_text())["regressions"]
    assert listed == ([entry] if kept else [])
    assert not (tmp_path / "regressions.xml").exists()


def test_a_rival_that_is_faster_makes_it_red():
    assert series([1.0] * 20, noise=0.01, torch=2.0, safetensors=0.8).faults() == ["slower than safetensors"]


def test_the_page_notes_that_a_faster_rival_does_less_only_with_a_reason():
    says = "a library that does less is faster"
    slower, slowed = series([1.0] * 20, torch=0.8), series([1.0] * 16 + [1.3] * 4, torch=2.0)
    assert says not in dashboard.landing([slower], "machine", {})
    slower.note = slowed.note = "torch writes in place"
    slowed.name = "tracked.Y.time_run"
    assert f"In the others, {says}" in dashboard.landing([slower], "machine", {})
    assert f"In 1, {says}" in dashboard.landing([slower, slowed], "machine", {})
    assert says not in dashboard.landing([slowed], "machine", {})


def test_a_rival_that_is_as_fast_within_the_noise_does_not():
    assert series([1.0] * 20, noise=0.1, torch=0.97).faults() == []


def test_a_series_that_is_too_noisy_is_grey():
    noisy = series([1.0] * 20, noise=0.6, torch=0.7)
    assert noisy.faults() == []
    assert noisy.verdict() == ("grey", "slower than torch, or not: too noisy to tell")
    assert "too noisy to tell" in dashboard.landing([noisy], "machine", {})


def test_a_limit_is_not_a_rival():
    assert series([1.0] * 20, limits=["torch"], torch=0.1, reference=2.0).faults() == []
    assert series([1.0] * 20, limits=["torch"], torch=0.1, reference=2.0).headline() == (2.0, "reference")


def test_ours_that_no_longer_runs_is_red():
    assert series([1.0] * 19 + [None], torch=2.0).faults()[0] == "ours was not measured"


def test_the_noise_is_measured_and_steps_do_not_count():
    quiet, busy = series([1.0] * 40, noise=0.01, torch=2.0), series([1.0] * 40, noise=0.2, torch=2.0)
    step = series([1.0] * 20 + [4.0] * 20, noise=0.01, torch=2.0)
    assert busy.noise() > 8 * quiet.noise()
    assert step.noise() == pytest.approx(quiet.noise(), rel=0.5)


def test_thresholds_of_asv_follow_the_noise_and_baselines_have_none():
    found = dashboard.configuration([series([1.0] * 40, noise=0.2, torch=2.0)], dashboard.ROOT / "html")
    [(pattern, threshold)] = found["regressions_thresholds"].items()
    assert dashboard.re.match(pattern, "tracked.X.time_run('ours')@main")
    assert 0.1 < threshold < 1.0
    patterns = found["regressions_first_commits"]
    assert set(patterns.values()) == {None}
    for name in ("tracked.X.time_run('torch')@main", "core_operations.Operations.time_operation_reference('get')"):
        assert any(dashboard.re.match(pattern, name) for pattern in patterns), name
    assert not any(dashboard.re.match(pattern, "tracked.X.time_run('ours')@main") for pattern in patterns)


def test_titles_and_subjects_are_escaped():
    one = series([1.0, 1.0], torch=2.0)
    one.title = one.about = "<script>alert(1)</script>"
    one.subjects = dict.fromkeys(one.commits, "<script>alert(2)</script>")
    assert "<script>" not in dashboard.landing([one], "<script>", {})


def test_scripts_of_other_hosts_become_copies():
    page = (
        '<script src="https://code.jquery.com/jquery-3.3.1.min.js" integrity="x"></script><a href="https://a.b">x</a>'
    )
    assert dashboard.offline(page) == (
        '<script src="vendor/jquery.min.js" onerror="js_load_failure()"></script><a href="https://a.b">x</a>'
    )


def test_a_script_without_a_copy_is_an_error():
    with pytest.raises(ValueError, match=r"no copy of 'https://x\.y/new\.js' in dashboard/vendor"):
        dashboard.offline('<script src="https://x.y/new.js"></script>')


def test_a_card_explains_the_contenders():
    told = series([1.0] * 3, reference=0.8)
    told.note = "tensordict writes into the <same> file."
    assert '<p class="note">tensordict writes into the &lt;same&gt; file.</p>' in dashboard.card(told, "machine")
