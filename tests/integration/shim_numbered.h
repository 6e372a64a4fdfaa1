/* The functions of a made-up cuDNN. The arguments of each fill integer registers, vector registers and the
 * stack; each returns its own number and a checksum of all its arguments. */
#include <stddef.h>

typedef struct {
  long number;
  double sum, first, last;
} Answer; /* too large to return in registers */

#define PARAMETERS                                                                                          \
  long a, long b, long c, long d, long e, long f, long g, double p, double q, double r, double s, double t, \
      double u, double v, double w, double x

typedef Answer Numbered(PARAMETERS);

enum {
#define EXPORT(name) number_##name,
#include "exports.def"
#undef EXPORT
  kCount
};
