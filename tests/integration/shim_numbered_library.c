#include "shim_numbered.h"

static Answer answer(long number, PARAMETERS) {
  const double sum = (double)(a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f) + p + 2 * q + 3 * r + 4 * s + 5 * t +
                     6 * u + 7 * v + 8 * w;
  return (Answer){number, sum, (double)g, x};
}

#define EXPORT(name)       \
  Answer name(PARAMETERS); \
  Answer name(PARAMETERS) { return answer(number_##name, a, b, c, d, e, f, g, p, q, r, s, t, u, v, w, x); }
#include "exports.def"
