"""A journal as the drop-in writes it."""

PLAIN = "f32:nchw:default:g1mb4_ic4ih8iw8_oc4oh6ow6_kh3kw3_sh1sw1_ph0pw0_dh0dw0"


def journal(engine: str, problem: str) -> str:
    return f"""\
mucudnn plan 1
device a device
engine {engine}
library a library 1.0
measured_at 1800000000
threads 1
kernel forward 1 {problem}
measured GEMM:2.5:4096:2.75:2.5:0
candidates graph GEMM:4096:deterministic eng7:900:deterministic,winograd
candidates legacy GEMM:4096:deterministic
end 1
"""
