/* Includes the headers of cuDNN and of the CUDA runtime. A machine without them has our declarations, which
 * test_header_agrees.py compares with the real ones. */
#ifndef CUDNN_AND_CUDA_H
#define CUDNN_AND_CUDA_H

#if __has_include(<cudnn.h>) && __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#include <cudnn.h>
#else
#include "../../../native/abi/cudart.h"
#include "../../../native/abi/cudnn.h"
#endif

#endif
