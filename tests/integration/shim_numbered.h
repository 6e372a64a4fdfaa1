/* The functions of a made-up cuDNN: each has arguments in every kind of place that a call has (registers of
 * both classes, the stack), and answers with its own number and all of them. */
#include <stddef.h>

typedef struct {
  long number;
  double sum, first, last;
} Answer; /* too large, and too mixed, for registers */

#define PARAMETERS                                                                                          \
  long a, long b, long c, long d, long e, long f, long g, double p, double q, double r, double s, double t, \
      double u, double v, double w, double x

typedef Answer Numbered(PARAMETERS);

enum {
#define EXPORT(name, result) number_##name,
#include "exports.def"
#undef EXPORT
  kCount
};
