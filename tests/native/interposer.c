/* A library that exports every function of abi/cudnn.h. Each of them ends the process. */
#include <stdio.h>
#include <stdlib.h>

#include "cudnn.h"

#define REFUSE(result, function, parameters)    \
  result function parameters {                  \
    fputs("captured: " #function "\n", stderr); \
    abort();                                    \
  }
MUCUDNN_CUDNN_FUNCTIONS(REFUSE)
