"""The progress that a replay prints without a terminal."""

from streamfold.cli.replay import replay_progress_lines
from streamfold.replay.files import RecordedFiles


def test_progress_is_shown_with_the_rate_since_the_last_line(tmp_path, capsys):
    path = tmp_path / "records.jsonl"
    path.write_text("{}\n" * 10)
    now = iter([0.0, 30.0, 61.0, 90.0, 122.0])
    show = replay_progress_lines(RecordedFiles([str(path)]), clock=lambda: next(now))
    for number in (200, 6_100, 7_000, 18_300):
        show(number)
    assert capsys.readouterr().err.splitlines() == [
        "200 records in 30 s, 0% of the files, 7 a second now.",
        "6,100 records in 1 min, 0% of the files, 190 a second now.",
        "18,300 records in 2 min, 0% of the files, 200 a second now.",
    ]
