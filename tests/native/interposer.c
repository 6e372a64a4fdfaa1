/* A library that exports every function of abi.h and lets none of them be called. */
#include <stdio.h>
#include <stdlib.h>

#include "abi.h"

#define REFUSE(result, function, parameters)    \
  result function parameters {                  \
    fputs("captured: " #function "\n", stderr); \
    abort();                                    \
  }
MUCUDNN_CUDNN_FUNCTIONS(REFUSE)
