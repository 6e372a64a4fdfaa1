// This file is compiled once for each instruction set: MUCUDNN_ISA names it, MUCUDNN_LANES is the width of
// its vectors. It must not include standard headers with code: the linker could use this file's copy of an
// inline function in programs for lesser processors.
#include "host/transforms/conversions.hpp"
#include "host/transforms/depthwise_lines.hpp"
#include "host/transforms/fft_tiles.hpp"
#include "host/transforms/small_products.hpp"
#include "host/transforms/winograd_lines.hpp"
#include "host/transforms/winograd_tiles.hpp"

#define MUCUDNN_QUOTE(name) #name
#define MUCUDNN_NAME(name) MUCUDNN_QUOTE(name)

namespace mucudnn::host::transforms::MUCUDNN_ISA {

extern const Kernels table;
const Kernels table = {
    MUCUDNN_NAME(MUCUDNN_ISA),
    {winograd_analyse<SignalTransform>, winograd_analyse<GradientTransform>, winograd_synthesise_image,
     winograd_analyse_filter, winograd_synthesise_filter},
    {line_kernels<3>, line_kernels<5>, line_kernels<7>},
    {fft_analyse, fft_analyse, fft_synthesise_image, fft_analyse_filter, fft_synthesise_filter},
    {lanes, pack_lines, unpack_run, correlate_line, add_line_gradient},
    copy_lines<float>,
    copy_lines<std::uint16_t>,
    write_alternate<Copy>,
    write_alternate<Copy>,
    {to_floats<HalfBits>, from_floats<HalfBits>, write_alternate<Convert<HalfBits>>},
    {to_floats<BFloat16Bits>, from_floats<BFloat16Bits>, write_alternate<Convert<BFloat16Bits>>},
    multiply_small,
    multiply_small_transposed};

}  // namespace mucudnn::host::transforms::MUCUDNN_ISA
