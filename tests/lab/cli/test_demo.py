"""`steadeq demo`: the main point, made short."""

import re

import torch
from lab.train.runs import change

from steadeq.lab.cli import demo
from steadeq.lab.cli.main import main
from steadeq.lab.run.record import RunRecord


def test_the_demo_trains_compares_and_reports_and_reuses_what_is_finished(tmp_path, monkeypatch, capfd):
    plain, few = demo._config, {"num_train": 640, "num_validation": 64, "num_test": 64}
    monkeypatch.setattr(demo, "_config", lambda *arguments: change(plain(*arguments), data=few))
    arguments = ["demo", "--out", str(tmp_path), "--num-epochs", "1", "--num-seeds", "2"]
    assert main(arguments) == 0
    output = capfd.readouterr().out
    records = {path.name: RunRecord.read(path) for path in tmp_path.iterdir() if path.is_dir()}
    assert set(records) == {f"prefix-sums{kind}-seed{seed}" for kind in ("", "-jr") for seed in (0, 1)}
    assert all(record.is_finished for record in records.values())
    # No more than torch was allowed, as by OMP_NUM_THREADS=1: more would wait for each other where others compute.
    assert {session.threads for record in records.values() for session in record.sessions} == {torch.get_num_threads()}
    for kind, label in (("", "without"), ("-jr", "with")):
        (line,) = [line for line in output.splitlines() if line.strip().startswith(f"{label} ")]
        shown = [float(number) for number in re.findall(r"(?<!± )\b([0-9.]+)%", line)]
        for share, budget in zip(shown, (12, 48, 192), strict=True):
            scores = [records[f"prefix-sums{kind}-seed{seed}"].evaluation.row(budget).score for seed in (0, 1)]
            assert abs(share - 50 * sum(scores)) <= 0.5
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") >= 8
    # The sentence that the terminal ends with opens the page, and figures follow it.
    (sentence,) = [line for line in output.splitlines() if line.startswith("Both networks are trained")]
    assert page.index(sentence) < page.index("<svg") < page.index('id="comparison"')
    # Three answers a step, after 4 evaluations each: what is logged is what the sentence says.
    assert "after 12 evaluations of one block" in sentence
    assert all(line.forward_evals == 12 for record in records.values() for line in record.training)
    weights = {name: (tmp_path / name / "metrics.jsonl").read_bytes() for name in records}
    assert main(arguments) == 0
    assert {name: (tmp_path / name / "metrics.jsonl").read_bytes() for name in records} == weights
