"""Clocks, temperature and governor, where a system shows them."""

from pathlib import Path

from retune.device.measure.vitals import Vitals, read_vitals


def show(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def test_a_board_that_shows_everything(tmp_path: Path):
    cores = tmp_path / "devices" / "system" / "cpu"
    for core, (khz, governor) in enumerate([(408_000, "schedutil"), (1_800_000, "performance")]):
        show(cores / f"cpu{core}" / "cpufreq" / "scaling_cur_freq", str(khz))
        show(cores / f"cpu{core}" / "cpufreq" / "scaling_governor", governor)
    for zone, text in enumerate(["45000", "71500", "-274000", "broken"]):
        show(tmp_path / "class" / "thermal" / f"thermal_zone{zone}" / "temp", text)
    found = read_vitals(tmp_path)
    assert found == Vitals(clock_mhz=1800.0, temperature_c=71.5, governor="performance,schedutil")


def test_a_gpu_shows_its_clock_where_no_core_does(tmp_path: Path):
    show(tmp_path / "class" / "devfreq" / "ff9a0000.gpu" / "cur_freq", "800000000")
    assert read_vitals(tmp_path) == Vitals(clock_mhz=800.0)


def test_a_system_that_shows_nothing(tmp_path: Path):
    assert read_vitals(tmp_path / "none") == Vitals()
    assert str(Vitals()) == ""


def test_vitals_in_words():
    found = Vitals(clock_mhz=1800.4, temperature_c=71.55, governor="performance")
    assert str(found) == "1800 MHz, 71.5 C, performance"
    assert str(Vitals(governor="schedutil")) == "schedutil"
