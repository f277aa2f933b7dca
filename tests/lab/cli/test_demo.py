"""`steadeq demo`: the main job, made short."""

from steadeq.lab.cli.main import main
from steadeq.lab.runs import RunRecord


def test_the_demo_trains_compares_and_reports_and_reuses_what_is_finished(tmp_path, capfd):
    arguments = ["demo", "--out", str(tmp_path), "--num-epochs", "1"]
    assert main(arguments) == 0
    output = capfd.readouterr().out
    records = {path.name: RunRecord.read(path) for path in tmp_path.iterdir() if path.is_dir()}
    assert set(records) == {"synthetic", "synthetic-jr", "digits", "digits-small-budget", "digits-jr"}
    assert all(record.is_finished for record in records.values())
    for name, record in records.items():
        (line,) = [line.split() for line in output.splitlines() if line.split()[:1] == [name]]
        budget = record.config.evaluation_solver.max_evals
        score = record.evaluation.row(budget).score
        assert line[1] == (f"{score:.2%}" if record.metric == "accuracy" else f"{score:.4g}")
    assert (tmp_path / "report.html").read_text().count("<svg") > 10
    weights = {name: (tmp_path / name / "metrics.jsonl").read_bytes() for name in records}
    assert main(arguments) == 0
    assert {name: (tmp_path / name / "metrics.jsonl").read_bytes() for name in records} == weights
