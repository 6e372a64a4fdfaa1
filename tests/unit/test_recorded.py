"""Times that other projects recorded become rows of machines that say so, and damaged files become errors."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.recorded import recorded_rows
from mucudnn.costs.schema import Row
from mucudnn.errors import MucudnnError
from mucudnn.plans.decide import Limits
from mucudnn.plans.optimizer import replay
from mucudnn.problems.kernels import Kernel

HEAD = (
    "gpu,cudnn,set,precision,math,layout,n,c,h,w,k,r,s,pad_h,pad_w,stride_h,stride_w,dilation_h,dilation_w,"
    "groups,algorithm,workspace_bytes,ms"
)
LINE = "Tesla_T4,7.6.3,a,fp32,0.0,NCHW,8,64,56,56,32,3,3,1,1,2,2,1,1,1,WINOGRAD,409600,1.25"
COUNTERS = {
    "input[0]": 8, "input[1]": 64, "input[2]": 56, "input[3]": 56, "filter_count": 32, "filter_height": 3,
    "filter_width": 3, "pad_height": 1, "pad_width": 1, "stride_height": 2, "stride_width": 2,
    "dilation_height": 1, "dilation_width": 1, "group": 1, "workspace_bytes": 409600.0,
    "x_tensor_layout": 0.0, "gpu_name:Tesla T4": 1.0, "cudnn_version:7.6.3": 2.0, "real_time": 1.25e6,
    "time_unit": "ns",
}  # fmt: skip
NAME = "LAYER_CUDNN_CONV_FWD_3_FLOAT32__BatchSize_8__1<CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD>/input[0]:8"
FORWARD = "64-56-56-3x3-32-28-28-8-1x1-2x2-1x1-0-NCHW-FP32-F=Wino:1.25,409600,algorithm;Gemm:2,0,x"
BACKWARD = "32-28-28-3x3-64-56-56-8-1x1-2x2-1x1-0-NCHW-FP32-B=algorithm:Wino,1.25,409600,more"
FDB = "gfx906_60.HIP.fdb.txt"


def benchmarks(**changes: Any) -> str:
    entry = {"name": NAME, **COUNTERS, **changes}
    failed = {"name": NAME, "error_occurred": True}
    return json.dumps({"context": {}, "benchmarks": [{"name": "LAYER_CUDNN_POOLING"}, failed, entry]})


def read(text: str, name: str = "file") -> list[Row]:
    rows = recorded_rows(text, Path(name))
    assert rows is not None
    return rows


@pytest.mark.parametrize(
    ("text", "name", "device", "library", "pass_"),
    [
        (f"{HEAD}\n{LINE}", "a.csv", "recorded Tesla T4", "cuDNN 7.6.3", "forward"),
        (benchmarks(), "a.json", "recorded Tesla T4", "cuDNN 7.6.3", "forward"),
        (FORWARD, FDB, "recorded gfx906_60", "MIOpen of unknown version", "forward"),
        (BACKWARD, "gfx906.HIP.3_2_0_a1.ufdb.txt", "recorded gfx906", "MIOpen 3.2.0", "backward_data"),
        (BACKWARD.replace("-B=", "-W="), "a.fdb.txt", "recorded a", "MIOpen of unknown version",
         "backward_filter"),
    ],
)  # fmt: skip
def test_each_format_gives_the_same_problem_time_and_workspace(
    text: str, name: str, device: str, library: str, pass_: str
) -> None:
    (_, row), *_ = read(text, name)
    assert (row["engine"], row["device"], row["library"], row["pass"]) == ("recorded", device, library, pass_)
    assert row["problem"].endswith("g1_ic64ih56iw56_oc32oh28ow28_kh3kw3_sh2sw2_ph1pw1_dh0dw0")
    assert (row["micro_batch"], row["time_ms"], row["workspace"]) == (8, 1.25, 409600)


def test_groups_types_and_layouts_are_read_and_what_the_engine_lacks_is_left_out() -> None:
    grouped = FORWARD.replace("NCHW-FP32-F", "NHWC-NHWC-NHWC-FP16-F_g2").replace("64-56", "128-56")
    lines = [grouped, FORWARD.replace("FP32", "INT8"), FORWARD.replace("NCHW", "NCHWc-CHWNc-NCHWc"), ""]
    rows = read("\n".join(lines), FDB)
    assert {row["problem"][:26] for _, row in rows} == {"f16:nhwc:default:g2_ic128i"}


def test_rows_without_a_layout_are_of_a_machine_of_their_own() -> None:
    for text in (f"{HEAD}\n{LINE}".replace("NCHW", "NCHW?"), benchmarks(x_tensor_layout=None)):
        [(_, row)] = read(text)
        assert row["device"] == "recorded Tesla T4, layout not named"
        assert row["problem"].startswith("f32:nchw")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (f"{HEAD}\n{LINE}\n{LINE.replace('1.25', 'slow')}", "a", "a, line 3: ms is 'slow': expected"),
        (f"{HEAD}\n{LINE.replace(',8,', ',0,')}", "a", "a, line 2: n is '0': expected `int` >= 1"),
        (f"{HEAD}\n{LINE[:30]}", "a", "a, line 2: it has 6 fields, not 23"),
        (f"{HEAD[:-3]}\n{LINE[:-5]}", "a", "a, line 2: 'ms' is missing"),
        (f"{HEAD}\n{LINE.replace(',2,2,', ',0,0,')}", "a", "a, line 2: the stride along height is 0"),
        (benchmarks(workspace_bytes=-1), "a", r"a, benchmarks\[2\]: workspace is -1: expected `int` >= 0"),
        (benchmarks(time_unit="us"), "a", "time_unit is 'us', not 'ns'"),
        (benchmarks()[:-2], "a", "a, as a whole: it is not JSON"),
        (f"\n{FORWARD}".replace("-F=", "-X="), FDB, "line 2: the problem is '64-56"),
        (FORWARD.replace("Gemm:2", "Gemm"), FDB, "line 1: a value is 'Gemm,0,x', not a solver"),
        (FORWARD.replace("-F=", "-B="), FDB, "line 1: output is"),
    ],
)
def test_an_error_names_the_place_and_the_field(text: str, name: str, message: str) -> None:
    with pytest.raises(MucudnnError, match=message):
        read(text, name)


SAMPLES = {"a.csv": f"{HEAD}\n{LINE}\n{LINE}", "a.json": benchmarks(), FDB: f"{FORWARD}\n{BACKWARD}"}


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_a_damaged_file_is_read_or_refused(name: str, data: st.DataObject) -> None:
    text = SAMPLES[name]
    at, length = data.draw(st.integers(10, len(text))), data.draw(st.integers(0, 9))
    damaged = text[:at] + data.draw(st.text(max_size=9)) + text[at + length :]
    with contextlib.suppress(MucudnnError):
        recorded_rows(damaged, Path(name))


def test_the_fastest_of_equal_rows_stays_and_a_replay_uses_the_recorded_sizes(tmp_path: Path) -> None:
    lines = [
        LINE,
        LINE.replace("1.25", "1.0"),
        LINE.replace(",8,64", ",3,64").replace("409600,1.25", "0,0.4"),
    ]
    with Cache.open(tmp_path / "cache.sqlite") as cache:
        rows = read("\n".join([HEAD, *lines]))
        assert [cache.merge(rows), cache.merge(rows)] == [2, 0]
        ((_, row), *_) = cache.rows()
        kernel = Kernel(parse_descriptor(row["problem"])[0].replace(mini_batch=6), "forward")
        with pytest.raises(MucudnnError, match=r"no measurements of mb6.* on recorded Tesla T4"):
            replay(cache, [kernel], "power_of_two", Limits())
        result = replay(cache, [kernel.at(8)], "power_of_two", Limits())
    assert "not a whole run" in result.machine.note_on_times
    assert [decision.divided.time_ms for decision in result.decisions] == [1.0]
