"""A library that accepts every graph and computes nothing, for graphs that no real library runs."""

from pathlib import Path

import host_abi
from programs import compile_c

SOURCE = """
#include <stdlib.h>
#include <string.h>
#include "abi/cudnn_backend.h"

/* The names of the host engine's own functions keep the drop-in from looking for a GPU. */
void mucudnnHostSetThreads(int threads) {}
const char* mucudnnHostDescribe(void) { return "nothing"; }

static int compiles(void) {
  const char* text = getenv("COMPILES");
  return text != NULL && *text != '\\0';
}

static cudnnStatus_t make(void** made) {
  *made = malloc(1);
  return CUDNN_STATUS_SUCCESS;
}

/* Answers with one configuration of one engine, without knobs and without workspace. */
static cudnnStatus_t get(cudnnBackendAttributeName_t name, int64_t* count, void* elements) {
  const int is_compiled = name == CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE && compiles();
  int64_t number = 0;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
    case CUDNN_ATTR_ENGINECFG_ENGINE:
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG:
      number = 1;
      break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      if (elements != NULL) memset(elements, 0, sizeof(int64_t));
      number = 1;
      break;
    default:
      if (is_compiled && elements != NULL) *(int*)elements = CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
      number = is_compiled;
  }
  if (count != NULL) *count = number;
  return CUDNN_STATUS_SUCCESS;
}
"""
BODIES = {
    "cudnnCreate": "return make((void**)handle);",
    "cudnnBackendCreateDescriptor": "return make((void**)descriptor);",
    "cudnnBackendGetAttribute": "return get(name, count, elements);",
    "cudnnGetErrorString": 'return "CUDNN_STATUS_SUCCESS";',
    "cudnnGetExecutionPlanWorkspaceSize": "*size = 0; return CUDNN_STATUS_SUCCESS;",
}


def build_accepting_library(folder: Path) -> Path:
    """Build the library. If COMPILES is set, its engine says that it compiles its execution plans."""
    source, library = folder / "accepting.c", folder / "accepting.so"
    functions = [
        f"{result} {name}({parameters}) {{ {BODIES.get(name, '' if result == 'void' else 'return 0;')} }}\n"
        for result, name, parameters in host_abi.CUDNN
    ]
    source.write_text(SOURCE + "".join(functions))
    compile_c("-shared", "-fPIC", f"-I{host_abi.ABI.parents[1]}", source, "-o", library)
    return library
