/* convdispatch_plugin.h: convolution engines in a shared library, without Python. C99, and C++.
 *
 * A library exports one function, convdispatch_get_plugin, which returns a table of solvers. A file NAME.icd of one
 * line, the library's path, in /etc/convdispatch/vendors makes it a plugin of that name (docs/plugins). The library is
 * first loaded, and each problem first asked about, in a child process: what crashes or hangs there costs a sentence.
 *
 * Versions. Structures only grow, at their end, and CONVDISPATCH_PLUGIN_VERSION rises when one does. `struct_size` of a
 * structure that you fill is sizeof of it; of one that you receive, the bytes that the host filled: read a field that
 * was added after version 1 only if it lies within. Text is UTF-8 and ends with 0. All pointers that you receive are
 * valid during the call only; all that you return in tables are valid while the library is loaded, for good.
 *
 * Status. Every function returns 0 (CONVDISPATCH_OK) or one of the other codes. `text`, of `size` bytes, holds the
 * words for it: lower case, no full stop, first the limit, then what came, as in "3x3 only, got 5x5". The host zeroes
 * it before the call and cuts what has no end. Do not throw, exit, fork, or change the signal handlers.
 *
 * Threads. Every function may be called from several threads at a time, and with several plans or one: a solver and a
 * plan do not change once they are there; what a run changes is in its workspace. */
#ifndef CONVDISPATCH_PLUGIN_H
#define CONVDISPATCH_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CONVDISPATCH_PLUGIN_VERSION 2

#ifdef _WIN32
#define CONVDISPATCH_EXPORT __declspec(dllexport)
#else
#define CONVDISPATCH_EXPORT __attribute__((visibility("default")))
#endif

enum { /* status */
  CONVDISPATCH_OK = 0,
  CONVDISPATCH_REJECTED = 1,      /* rejects: the solver cannot compute the problem; text says why */
  CONVDISPATCH_END = 2,           /* config: there are no more */
  CONVDISPATCH_UNKNOWN = 3,       /* cost, workspace: not known */
  CONVDISPATCH_OUT_OF_MEMORY = 4,
  CONVDISPATCH_BUILD_FAILED = 5,  /* a kernel did not compile; text is the compiler's */
  CONVDISPATCH_LAUNCH_FAILED = 6, /* a driver refused a command */
  CONVDISPATCH_INTERNAL = 7       /* anything else */
};
enum { /* places, where a plan's memory is and its commands go: bits */
  CONVDISPATCH_HOST = 1,   /* addresses of the host; enqueue computes, and returns when the result is there */
  CONVDISPATCH_OPENCL = 2, /* cl_mem and bytes into it, commands on a cl_command_queue that is in order */
  CONVDISPATCH_CUDA = 4    /* CUdeviceptr, commands on a CUstream; the device's primary context is current */
};
enum { CONVDISPATCH_FORWARD = 1, CONVDISPATCH_BACKWARD_DATA = 2, CONVDISPATCH_BACKWARD_WEIGHTS = 3 };
enum { CONVDISPATCH_NCHW = 1, CONVDISPATCH_NHWC = 2 };
enum { CONVDISPATCH_CPU = 1, CONVDISPATCH_GPU = 2, CONVDISPATCH_ACCELERATOR = 3 };
enum { /* dtypes; sums are float32 or wider, of float64 float64, of integers int32 */
  CONVDISPATCH_FLOAT32 = 1, CONVDISPATCH_FLOAT64 = 2, CONVDISPATCH_FLOAT16 = 3, CONVDISPATCH_BFLOAT16 = 4,
  CONVDISPATCH_INT8 = 5, CONVDISPATCH_UINT8 = 6, CONVDISPATCH_INT32 = 7,
  CONVDISPATCH_FLOAT8_E4M3 = 8, CONVDISPATCH_FLOAT8_E5M2 = 9 /* quantized: one byte each, sums float32 */
};
enum { /* math: how exact a result of float32 must be */
  CONVDISPATCH_MATH_FLOAT32 = 1,     /* relative error (norm, against float64) of at most 1e-5, for any data */
  CONVDISPATCH_MATH_IEEE = 2,        /* at most twice the error of a plain float32 sum of the same length */
  CONVDISPATCH_MATH_TF32 = 3,        /* 11 bits of each factor */
  CONVDISPATCH_MATH_FAST = 4,        /* what the solver documents */
  CONVDISPATCH_MATH_REPRODUCIBLE = 5 /* the bits of the one definition, for those that promise it */
};
enum { /* parts of the epilogue: bits; result = activation(conv + bias + residual), or output + conv for ACCUMULATE */
  CONVDISPATCH_BIAS = 1, CONVDISPATCH_RESIDUAL = 2, CONVDISPATCH_ACTIVATION = 4, CONVDISPATCH_ACCUMULATE = 8
};
enum { /* a solver's promises: bits */
  CONVDISPATCH_DETERMINISTIC = 1,     /* the same inputs give the same bits, every time */
  CONVDISPATCH_EXACT = 2,             /* small integers give exact results, as a direct sum does */
  CONVDISPATCH_SPREADS_NONFINITE = 4, /* an infinity or NaN may reach outputs that do not read it (transforms) */
  CONVDISPATCH_REPRODUCIBLE = 8,      /* computes problems of MATH_REPRODUCIBLE too */
  CONVDISPATCH_BATCH_INVARIANT = 16,  /* an image's result does not depend on how many and which are beside it */
  CONVDISPATCH_CONFINES_NONFINITE = 32 /* an infinity or NaN reaches only outputs that read it: runs under strict_nan */
};

/* x is [mb, ic, id, ih, iw], w [oc, ic / g, kd, kh, kw], y [mb, oc, od, oh, ow], each contiguous; with
 * CONVDISPATCH_NHWC the channels come last in all three. Axes beyond `ndim` have size, kernel and stride 1. The
 * direction says which tensor is written: forward y, data x, weights w; the other two are read. A solver sees no part
 * of the epilogue that it does not fuse. mb may be 0. */
typedef struct convdispatch_problem {
  uint32_t struct_size;
  uint32_t direction, dtype, out_dtype; /* out_dtype: of y and residual; differs from dtype (of x) if quantized only */
  uint32_t layout, math, ndim;          /* ndim: axes of space, 1 to 3: w; h, w; d, h, w */
  uint32_t epilogue;                    /* the parts that are wanted */
  uint32_t constant_weights;            /* 1: w keeps its values from run to run */
  uint32_t reserved;
  const char *activation;               /* "relu", "clip", ... (docs/plugins/reference.md), or NULL */
  double activation_parameters[2];      /* its numbers, as in clip(0, 6); 0 where it has fewer */
  int64_t mb, ic, id, ih, iw;           /* images; of x: channels, depth, height, width */
  int64_t oc, od, oh, ow;               /* of y */
  int64_t kd, kh, kw, sd, sh, sw;       /* kernel, stride */
  int64_t pd, ph, pw, pd_r, ph_r, pw_r; /* zeros before and behind each axis of x */
  int64_t dd, dh, dw, g;                /* dilation, where 1 is dense; groups */
} convdispatch_problem;

typedef struct convdispatch_device {
  uint32_t struct_size;
  uint32_t place;                        /* where a plan will run: one of the solver's places */
  uint32_t type, compute_units;
  uint32_t simd_width;                   /* floats of a native vector: 16 for AVX-512, 1 for most GPUs */
  uint32_t fp16, fp64;                   /* 1: kernels in OpenCL C compute in it */
  int32_t cuda_capability;               /* 90 for sm_90; 0 for others than NVIDIA's */
  const char *vendor, *name, *arch;      /* "nvidia", "amd", "intel", "pocl"; its own words; "sm_90", "gfx90a", "simd512" */
  const char *platform, *driver, *extensions; /* OpenCL's words; extensions are separated by spaces */
  uint64_t local_mem_size, global_mem_size, max_alloc_size, max_work_group_size; /* bytes; work items */
  double flops, bandwidth, launch;       /* float32 operations and bytes (read and written) a second; seconds a launch */
  /* Of `plan` only. Questions open no device: NULL, or -1. */
  void *cl_context, *cl_device_id;
  int32_t cuda_ordinal;                  /* CUDA's number of the device; -1 where it has none */
  uint32_t reserved;
  void *(*opencl_function)(const char *name); /* address of "clEnqueueNDRangeKernel", ...; link with no OpenCL library */
} convdispatch_device;

typedef struct convdispatch_memory {
  void *base;      /* host: address; OpenCL: cl_mem; CUDA: CUdeviceptr. NULL where the problem has no such operand */
  uint64_t offset; /* bytes from base to the first element, a multiple of an element; 0 on the host and CUDA */
  uint64_t size;   /* bytes of the operand */
} convdispatch_memory;

/* bias: one element a channel of the written tensor (quantized: the table of docs/plugins/reference.md).
 * residual: as the written tensor, and perhaps its own memory. Operands that are read are not written.
 * workspace: as many bytes as `workspace` said, aligned to 64, with any values. */
typedef struct convdispatch_call {
  uint32_t struct_size;
  uint32_t place;
  void *queue; /* cl_command_queue, CUstream; NULL on the host */
  convdispatch_memory x, w, y, bias, residual, workspace;
} convdispatch_call;

typedef struct convdispatch_solver convdispatch_solver;
struct convdispatch_solver {
  uint32_t struct_size;
  uint32_t places, promises, fuses; /* bits of the enumerations above; fuses: parts of the epilogue */
  uint32_t dtypes;                  /* 1u << CONVDISPATCH_FLOAT32 | ...: dtypes of x; never asked about another */
  uint32_t reserved;
  const char *name;                 /* "PLUGIN.VARIANT": the table's name, a point, letters, digits and . _ - */
  void *data;                       /* yours */

  /* Why the solver cannot compute the problem: CONVDISPATCH_REJECTED and text, or CONVDISPATCH_OK. Cheap and pure. */
  int32_t (*rejects)(const convdispatch_solver *, const convdispatch_problem *, const convdispatch_device *, char *text,
                     size_t size);
  /* Tuning choice `index`, from 0, as a text of yours of at most 255 bytes; the first is used unmeasured. At most 1000,
   * then CONVDISPATCH_END. NULL: there is one, the empty text. */
  int32_t (*config)(const convdispatch_solver *, const convdispatch_problem *, const convdispatch_device *,
                    uint32_t index, char *text, size_t size);
  /* Predicted seconds, by the device's rates; orders solvers that nobody measured. NULL: never known. */
  int32_t (*cost)(const convdispatch_solver *, const convdispatch_problem *, const convdispatch_device *,
                  const char *config, double *seconds);
  /* Bytes of scratch memory that a run needs, on this device and at any time. NULL: none. */
  int32_t (*workspace)(const convdispatch_solver *, const convdispatch_problem *, const convdispatch_device *,
                       const char *config, uint64_t *bytes);
  /* Compiles one configuration for one device, once; *plan is yours and not NULL. */
  int32_t (*plan)(const convdispatch_solver *, const convdispatch_problem *, const convdispatch_device *,
                  const char *config, void **plan, char *text, size_t size);
  /* Runs it: on a queue or stream behind all that is there, without a wait and without an allocation; do not finish or
   * flush. On the host it begins when the operands are there. What an error leaves behind, nobody reads. */
  int32_t (*enqueue)(void *plan, const convdispatch_call *, char *text, size_t size);
  /* Called once, after the last enqueue. On a queue or stream that may still be at work: OpenCL's counts of references
   * hold what its commands need; release CUDA memory in the stream's order. */
  void (*free)(void *plan);

  /* Since version 2. Constant weights in a form of the solver's own, which the host keeps beside them; both or neither.
   * `packed` says its bytes, of problems with constant_weights; 0: w is read as it is. `pack`, in the order that
   * `enqueue` keeps, reads call->w and writes all of call->y, that form; there is no other operand, and no workspace.
   * Then `enqueue` gets the form as call->w, also of another plan of an equal problem and config. */
  int32_t (*packed)(const convdispatch_solver *, const convdispatch_problem *, const convdispatch_device *,
                    const char *config, uint64_t *bytes);
  int32_t (*pack)(void *plan, const convdispatch_call *, char *text, size_t size);
};

typedef struct convdispatch_plugin {
  uint32_t struct_size;
  uint32_t version;            /* of this header: CONVDISPATCH_PLUGIN_VERSION */
  const char *name;            /* letters, digits, _ and -: what its solvers' names begin with */
  const char *vendor, *release; /* for people: "Acme", "1.4.2" */
  uint32_t solver_count, reserved;
  const convdispatch_solver *const *solvers;
  /* What this machine lacks, in text, for doctor and verify: not CONVDISPATCH_OK. NULL: nothing. */
  int32_t (*unavailable)(char *text, size_t size);
} convdispatch_plugin;

/* The one exported function. `version` is the host's; a newer library returns a table that an older host reads, or NULL
 * where it cannot. May be called more than once. */
CONVDISPATCH_EXPORT const convdispatch_plugin *convdispatch_get_plugin(uint32_t version);

#ifdef __cplusplus
}
#endif
#endif
