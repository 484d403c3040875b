/* A convolution engine in C: float32 in NCHW by its definition, summed in float64, on a CPU's host memory.
 *
 *   y[n, o, p] = bias[o] + sum over i, k of w[o, i, k] * x[n, i, p * s + k * d - pad] */
#include <convdispatch_plugin.h>

#include <stdio.h>
#include <stdlib.h>

/* Rates of one core, which a CPU is slower than where the row is short: measured with gcc -O3 on 56x56 layers. */
#define FLOPS 4e9
#define ROW_SECONDS 2e-8

static int32_t refuse(char *text, size_t size, const char *limit, long long got) {
  snprintf(text, size, "%s, got %lld", limit, got);
  return CONVDISPATCH_REJECTED;
}

static int32_t rejects(const convdispatch_solver *self, const convdispatch_problem *p, const convdispatch_device *device,
                       char *text, size_t size) {
  (void)self, (void)device;
  if (p->direction != CONVDISPATCH_FORWARD) return refuse(text, size, "forward (1) only", p->direction);
  if (p->layout != CONVDISPATCH_NCHW) return refuse(text, size, "nchw (1) only", p->layout);
  if (p->mb < 1) return refuse(text, size, "1 image or more", p->mb);
  return CONVDISPATCH_OK;
}

static double rows(const convdispatch_problem *p) { return (double)p->mb * p->oc * p->od * p->oh; }
static double taps(const convdispatch_problem *p) { return (double)(p->ic / p->g) * p->kd * p->kh * p->kw; }

static int32_t cost(const convdispatch_solver *self, const convdispatch_problem *p, const convdispatch_device *device,
                    const char *config, double *seconds) {
  (void)self, (void)device, (void)config;
  *seconds = rows(p) * taps(p) * (2.0 * p->ow / FLOPS + ROW_SECONDS);
  return CONVDISPATCH_OK;
}

static int32_t workspace(const convdispatch_solver *self, const convdispatch_problem *p,
                         const convdispatch_device *device, const char *config, uint64_t *bytes) {
  (void)self, (void)device, (void)config;
  *bytes = (uint64_t)p->ow * sizeof(double); /* the sums of one row */
  return CONVDISPATCH_OK;
}

static int32_t plan(const convdispatch_solver *self, const convdispatch_problem *p, const convdispatch_device *device,
                    const char *config, void **made, char *text, size_t size) {
  convdispatch_problem *copy = malloc(sizeof *copy);
  (void)self, (void)device, (void)config;
  if (copy == NULL) {
    snprintf(text, size, "no memory for a plan");
    return CONVDISPATCH_OUT_OF_MEMORY;
  }
  *copy = *p; /* without `activation`, which this solver does not fuse: that text is the host's */
  *made = copy;
  return CONVDISPATCH_OK;
}

/* First and last + 1 of the outputs along an axis that read an input at tap `offset`, which may be negative. */
static void inside(int64_t in, int64_t out, int64_t stride, int64_t offset, int64_t *first, int64_t *end) {
  *first = offset < 0 ? (-offset + stride - 1) / stride : 0;
  *end = offset >= in ? 0 : (in - 1 - offset) / stride + 1;
  if (*end > out) *end = out;
}

/* Adds one tap of the kernel to the sums of a row. */
static void add_row(const convdispatch_problem *p, const float *x, double w, int64_t offset, double *sums) {
  int64_t first, end, o;
  inside(p->iw, p->ow, p->sw, offset, &first, &end);
  if (p->sw == 1)
    for (o = first; o < end; ++o) sums[o] += w * x[o + offset];
  else
    for (o = first; o < end; ++o) sums[o] += w * x[o * p->sw + offset];
}

static void row(const convdispatch_problem *p, const float *x, const float *w, int64_t d, int64_t h, double *sums) {
  int64_t i, kd, kh, kw;
  for (i = 0; i < p->ic / p->g; ++i, x += p->id * p->ih * p->iw)
    for (kd = 0; kd < p->kd; ++kd)
      for (kh = 0; kh < p->kh; ++kh, w += p->kw) {
        const int64_t z = d * p->sd + kd * p->dd - p->pd, y = h * p->sh + kh * p->dh - p->ph;
        if (z < 0 || z >= p->id || y < 0 || y >= p->ih) continue;
        for (kw = 0; kw < p->kw; ++kw) add_row(p, x + (z * p->ih + y) * p->iw, w[kw], kw * p->dw - p->pw, sums);
      }
}

static int32_t enqueue(void *plan, const convdispatch_call *call, char *text, size_t size) {
  const convdispatch_problem *p = plan;
  const float *x = call->x.base, *w = call->w.base, *bias = call->bias.base;
  float *y = call->y.base;
  double *sums = call->workspace.base;
  const int64_t channels = p->ic / p->g, image = p->id * p->ih * p->iw, kernel = channels * p->kd * p->kh * p->kw;
  int64_t n, o, d, h, c;
  (void)text, (void)size;
  for (n = 0; n < p->mb; ++n)
    for (o = 0; o < p->oc; ++o)
      for (d = 0; d < p->od; ++d)
        for (h = 0; h < p->oh; ++h, y += p->ow) {
          for (c = 0; c < p->ow; ++c) sums[c] = bias ? bias[o] : 0;
          row(p, x + (n * p->ic + o / (p->oc / p->g) * channels) * image, w + o * kernel, d, h, sums);
          for (c = 0; c < p->ow; ++c) y[c] = (float)sums[c];
        }
  return CONVDISPATCH_OK;
}

static const convdispatch_solver direct = {
    sizeof(convdispatch_solver), CONVDISPATCH_HOST,
    CONVDISPATCH_DETERMINISTIC | CONVDISPATCH_EXACT | CONVDISPATCH_BATCH_INVARIANT | CONVDISPATCH_CONFINES_NONFINITE,
    CONVDISPATCH_BIAS, 1u << CONVDISPATCH_FLOAT32, 0, "native.direct", NULL,
    rejects, NULL, cost, workspace, plan, enqueue, free, NULL, NULL,
};
static const convdispatch_solver *const solvers[] = {&direct};
static const convdispatch_plugin plugin = {
    sizeof(convdispatch_plugin), CONVDISPATCH_PLUGIN_VERSION, "native", "convdispatch", "1.0", 1, 0, solvers, NULL,
};

const convdispatch_plugin *convdispatch_get_plugin(uint32_t version) {
  return version >= CONVDISPATCH_PLUGIN_VERSION ? &plugin : NULL;
}
