"""Problems that several tests of the drop-in divide."""

# The same problem in both APIs: in fp32 the drop-in calls the host engine's graph API fma, because its
# engines note no tensor cores.
GRAPH_PROBLEM = "f32:nchw:fma:g1mb7_ic4ih12iw12_oc6oh12ow12_kh3kw3_sh1sw1_ph1pw1_dh0dw0"
LEGACY_PROBLEM = GRAPH_PROBLEM.replace("fma", "default")

# Shapes with groups, strides, odd sizes and 3-D. Tests add a type, a layout and a mini-batch.
SHAPES = (
    "g1ic4ih12_oc6_kh3_ph1",
    "g2ic6ih9iw7_oc4_kh3kw2_sh2_ph1",
    "ic3id5ih6iw7_oc5_kd2kh3kw3_pd1ph1pw1_dd0dh1dw0",
)
