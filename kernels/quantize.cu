// Activations to NVFP4: alone, with or without a block rotation, or in the tail of RMSNorm or of SiLU(gate) * up.
//
// What binds it: for a few tokens nothing but latency (a launch and one trip to memory and back), so one thread takes
// one block of 16 from load to store and nothing is exchanged between threads. For many tokens the arithmetic:
// sixteen divisions a block are replaced by one reciprocal and Markstein's correction (two fused steps that give the
// correctly rounded quotient), and rounding to E2M1 by the float adder (see `e2m1_code`).
// What was traded: codes must equal the checkpoint's rule bit for bit, float32 operation by operation, so no step is
// merged that would be rounded twice there:
//     s = e4m3(clamp(amax / (6 g), 2^-9, 448)), 1 for a block of zeros;  code = e2m1(x / (s g)), ties to even.
// NaN spreads over its block through a NaN scale; infinity saturates. The 16-bit values between the parts of a fused
// kernel are rounded where the separate modules would round them.
//
// One file serves every consumer by -D FORM:
//   0  packed codes [M, K/2] and E4M3 scales [M, K/16]
//   1  int8 codes (2 * e2m1) in `lane_piece` order, and {float s, int MAGIC_BITS - 16 * sum of the codes} by `lane_scale`
//   2  fp16 codes in `lane_piece` order, each 8 in `half_pair_element` order, and float32 scales by `lane_scale`
//   3  code * s in the 16-bit type of x, [M, K]
//   4  code * s as fp16 tensor-core fragments (`fragment_piece`), zero beyond M and K
//   5  x itself as fragments in its own type: no quantization (W4A16)
//   6  E4M3 bytes and half scales as hopper.cu takes them with SPREAD 0 (to 4 tokens), zero beyond K
//   7  the same with SPREAD 1 (to 8 tokens)
#include "nvfp4.cuh"

#ifndef FORM
#error "FORM selects the output, 0 to 7"
#endif
static constexpr bool PADDED = FORM == 4 || FORM == 5;  // tokens up to a multiple of 8 are written
static constexpr bool WIDE = FORM >= 4;                 // and K up to a whole chunk

// Where a kernel writes: codes, and scales for the forms that have them.
struct Target {
  u8* codes;
  u8* scales;
  float g;  // input_scale
  int m, k;
};

DEVICE int padded_blocks(int k) {
  int per_chunk = FORM >= 6 ? 8 : 4 * lane_blocks(k), blocks = k / BLOCK;
  return WIDE ? (blocks + per_chunk - 1) / per_chunk * per_chunk : blocks;
}

// E2M1 code of v in [0, 8]: with p the power of two at or below max(v, 1), adding 1.5 * 2^22 * p rounds v to the
// grid p/2, ties to even, and leaves the number of grid steps in the sum's low bits.
DEVICE u32 e2m1_code(float v) {
  u32 power = max(__float_as_uint(v) & 0x7F800000u, 0x3F800000u);
  u32 shift = power + (22u << 23 | 0x00400000u);
  u32 steps = __float_as_uint(v + __uint_as_float(shift)) - shift;
  return min(steps + ((power - 0x3F800000u) >> 22), 7u);
}

struct Quantized {
  u32 q[2];     // codes, 8 nibbles each
  u32 scale;    // E4M3 byte
};

DEVICE Quantized quantize_block(const float (&x)[16], float g) {
  u32 top = 0;  // the largest |x| as bits: NaN beats everything
#pragma unroll
  for (int i = 0; i < 16; i++) top = max(top, __float_as_uint(x[i]) & 0x7FFFFFFFu);
  Quantized r;
  if (top > 0x7F800000u) {
    r.q[0] = r.q[1] = 0;
    r.scale = 0x7F;
    return r;
  }
  float wanted = __fdiv_rn(__uint_as_float(top), __fmul_rn(g, 6.0f));
  if (wanted == 0.0f) wanted = 1.0f;
  r.scale = float_to_e4m3(fminf(fmaxf(wanted, 0x1p-9f), 448.0f));
  float step = __fmul_rn(half_to_float((u16)e4m3x2_to_half2(r.scale)), g), eight = 8.0f * step;
  // Outside this range a reciprocal or a remainder could leave the normal numbers: divide there.
  bool plain = step > 0x1p-100f && step < 0x1p15f;
  float reciprocal = __fdiv_rn(1.0f, step);
  r.q[0] = r.q[1] = 0;
#pragma unroll
  for (int i = 0; i < 16; i++) {
    float a = fminf(fabsf(x[i]), eight), v;  // 8 rounds to 6 as all above it; infinity is gone
    if (plain) {
      v = __fmul_rn(a, reciprocal);
      v = __fmaf_rn(__fmaf_rn(-v, step, a), reciprocal, v);
    } else {
      v = fminf(__fdiv_rn(fabsf(x[i]), step), 8.0f);
    }
    u32 code = e2m1_code(v);
    if (v > 0.0f) code |= __float_as_uint(x[i]) >> 28 & 8u;  // a zero has no sign, a value that rounds to zero has
    r.q[i >> 3] |= code << (4 * (i & 7));
  }
  return r;
}

template <bool BF16> DEVICE u32 pack_16(float low, float high) {
  return (u32)float_to_16<BF16>(low) | (u32)float_to_16<BF16>(high) << 16;
}
// E2M1 value of nibble i of q as float
DEVICE float e2m1_value(u32 q, int i) {
  u32 n = q >> (4 * i);
  return __uint_as_float((n & 7u) << 22) * 0x1p126f * (n & 8u ? -1.0f : 1.0f);
}

// Writes block b of row m, or zeros where that lies beyond M or K.
template <bool BF16> DEVICE void emit(const Target& to, int m, int b, const float (&x)[16]) {
  const int blocks = to.k / BLOCK;
  const bool inside = m < to.m && b < blocks;
  const u64 at = (u64)m * blocks + b;
  if (FORM == 5) {
    const int vec = lane_blocks(to.k), tiles = (to.m + 7) >> 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 w[4];
#pragma unroll
      for (int s = 0; s < 4; s++) {
        const int first = BF16 ? bf16_pair_element(2 * s) : half_pair_element(2 * s);
        const int second = BF16 ? bf16_pair_element(2 * s + 1) : half_pair_element(2 * s + 1);
        w[s] = inside ? pack_16<BF16>(x[8 * half + first], x[8 * half + second]) : 0u;
      }
      store16(to.codes + fragment_piece(m, b * 16 + 8 * half, tiles, vec) * 16, make_uint4(w[0], w[1], w[2], w[3]));
    }
    return;
  }
  Quantized q;
  if (inside) {
    q = quantize_block(x, to.g);
  } else {
    q.q[0] = q.q[1] = q.scale = 0;
  }
  const float scale = half_to_float((u16)e4m3x2_to_half2(q.scale));
  if (FORM == 0) {
    *(uint2*)(to.codes + at * 8) = make_uint2(q.q[0], q.q[1]);
    to.scales[at] = (u8)q.scale;
  } else if (FORM == 1) {
    u32 low[2], high[2];
    e2m1x8_to_int8(q.q[0], low);
    e2m1x8_to_int8(q.q[1], high);
    const int vec = lane_blocks(to.k);
    store16(to.codes + lane_piece(m, to.m, b, vec, 1, 0), make_uint4(low[0], low[1], high[0], high[1]));
    int sum = 0;
    sum = dp4a(low[0], 0x01010101u, sum);
    sum = dp4a(low[1], 0x01010101u, sum);
    sum = dp4a(high[0], 0x01010101u, sum);
    sum = dp4a(high[1], 0x01010101u, sum);
    *(uint2*)(to.scales + lane_scale(m, to.m, b, vec) * 8) = make_uint2(__float_as_uint(scale), (u32)(MAGIC_BITS - 16 * sum));
  } else if (FORM == 2) {
    const int vec = lane_blocks(to.k);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 w[4];
      e2m1x8_to_half2(q.q[half], w);
      const u32 up = E2M1_UNSTEP == 1.0f ? 0x3C003C00u : 0x74007400u;
      store16(to.codes + lane_piece(m, to.m, b, vec, 2, half),
              make_uint4(mul_half2(w[0], up), mul_half2(w[1], up), mul_half2(w[2], up), mul_half2(w[3], up)));
    }
    ((float*)to.scales)[lane_scale(m, to.m, b, vec)] = scale;
  } else if (FORM == 3) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 w[4];
#pragma unroll
      for (int s = 0; s < 4; s++)
        w[s] = pack_16<BF16>(e2m1_value(q.q[half], 2 * s) * scale, e2m1_value(q.q[half], 2 * s + 1) * scale);
      store16(to.codes + at * 32 + half * 16, make_uint4(w[0], w[1], w[2], w[3]));
    }
  } else if (FORM == 4) {
    const int vec = lane_blocks(to.k), tiles = (to.m + 7) >> 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 w[4];
#pragma unroll
      for (int s = 0; s < 4; s++)
        w[s] = pack_16<false>(e2m1_value(q.q[half], half_pair_element(2 * s)) * scale,
                              e2m1_value(q.q[half], half_pair_element(2 * s + 1)) * scale);
      store16(to.codes + fragment_piece(m, b * 16 + 8 * half, tiles, vec) * 16, make_uint4(w[0], w[1], w[2], w[3]));
    }
  } else if (FORM == 6 || FORM == 7) {
    u32 low[2], high[2];
    e2m1x8_to_e4m3(q.q[0], low);
    e2m1x8_to_e4m3(q.q[1], high);
    const uint4 bytes = make_uint4(low[0], low[1], high[0], high[1]);
    const int chunk = b >> 3, in_chunk = b & 7, chunks = padded_blocks(to.k) >> 3;
    const u64 row = 16 * to.m;
    u8* scales;
    if (FORM == 6) {  // a record a chunk: each token's block and as many zeros, then scales
      u8* record = to.codes + chunk * (16 * row + 64);
      store16(record + in_chunk * 2 * row + m * 32, bytes);
      store16(record + in_chunk * 2 * row + m * 32 + 16, make_uint4(0, 0, 0, 0));
      scales = record + 16 * row + m * 16;
    } else {          // even blocks from the last to the first, odd blocks from the first on, scales
      const int pairs = 4 * chunks, pair = b >> 1;
      store16(to.codes + (b & 1 ? pairs + pair : pairs - 1 - pair) * row + m * 16, bytes);
      scales = to.codes + 2 * pairs * row + chunk * 128 + m * 16;
    }
    ((u16*)scales)[in_chunk] = float_to_half(scale * 0.25f);
  }
}

template <bool BF16> DEVICE void load_block(const u8* p, float (&x)[16]) {
  const uint4 low = load16(p), high = load16(p + 16);
  const u32 w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float2 f = pair_to_float2<BF16>(w[i]);
    x[2 * i] = f.x;
    x[2 * i + 1] = f.y;
  }
}

// 16-point Hadamard transform in natural (Sylvester) order over sqrt(16), rounded to the 16-bit type.
template <bool BF16> DEVICE void rotate(float (&x)[16]) {
#pragma unroll
  for (int span = 1; span < 16; span *= 2)
#pragma unroll
    for (int i = 0; i < 16; i++)
      if (!(i & span)) {
        const float a = x[i], b = x[i + span];
        x[i] = a + b;
        x[i + span] = a - b;
      }
#pragma unroll
  for (int i = 0; i < 16; i++) x[i] = through_16<BF16>(x[i] * 0.25f);
}

// x [M, K]; one thread a block, grid.x * blockDim.x >= padded rows * padded blocks
template <bool BF16, bool ROTATE> DEVICE void plain(const u8* x, Target to) {
  let_next_launch();
  wait_for_previous();
  const int blocks = padded_blocks(to.k), rows = PADDED ? (to.m + 7) & ~7 : to.m;
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (u64)rows * blocks) return;
  const int m = (int)(i / blocks), b = (int)(i - (u64)m * blocks);
  float v[16];
  if (m < to.m && b < to.k / BLOCK) {
    load_block<BF16>(x + ((u64)m * to.k + b * 16) * 2, v);
    if (ROTATE) rotate<BF16>(v);
  }
  emit<BF16>(to, m, b, v);
}

// gate, up [M, K], rows `stride` values apart: silu(gate) rounded, times up, rounded, quantized
template <bool BF16> DEVICE void silu(const u8* gate, const u8* up, int stride, Target to) {
  let_next_launch();
  wait_for_previous();
  const int blocks = padded_blocks(to.k), rows = PADDED ? (to.m + 7) & ~7 : to.m;
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (u64)rows * blocks) return;
  const int m = (int)(i / blocks), b = (int)(i - (u64)m * blocks);
  float v[16], u[16];
  if (m < to.m && b < to.k / BLOCK) {
    const u64 at = ((u64)m * stride + b * 16) * 2;
    load_block<BF16>(gate + at, v);
    load_block<BF16>(up + at, u);
#pragma unroll
    for (int j = 0; j < 16; j++) {
      const float act = through_16<BF16>(__fdiv_rn(v[j], __fadd_rn(1.0f, expf(-v[j]))));
      v[j] = through_16<BF16>(__fmul_rn(act, u[j]));
    }
  }
  emit<BF16>(to, m, b, v);
}

// x [M, K], weight [K]: x * rsqrt(mean(x^2) + eps) in float32, rounded, times weight, rounded, quantized.
// One CTA a row; blockDim.x a multiple of 32, at most 1024.
template <bool BF16> DEVICE void rmsnorm(const u8* x, const u8* weight, float eps, Target to) {
  __shared__ float partial[32];
  let_next_launch();
  wait_for_previous();
  const int m = blockIdx.x, blocks = to.k / BLOCK, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u8* row = x + (u64)m * to.k * 2;
  float v[16], w[16], factor = 0.0f;
  if (m < to.m) {
    float sum = 0.0f;
    for (int b = threadIdx.x; b < blocks; b += blockDim.x) {
      load_block<BF16>(row + b * 32, v);
#pragma unroll
      for (int j = 0; j < 16; j++) sum += v[j] * v[j];
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < (int)(blockDim.x >> 5); i++) sum += partial[i];
    factor = rsqrtf(__fadd_rn(__fmul_rn(sum, __fdiv_rn(1.0f, (float)to.k)), eps));
  }
  const int all = padded_blocks(to.k);
  for (int b = threadIdx.x; b < all; b += blockDim.x) {
    if (m < to.m && b < blocks) {
      load_block<BF16>(row + b * 32, v);
      load_block<BF16>(weight + b * 32, w);
#pragma unroll
      for (int j = 0; j < 16; j++)
        v[j] = through_16<BF16>(__fmul_rn(w[j], through_16<BF16>(__fmul_rn(v[j], factor))));
      }
    emit<BF16>(to, m, b, v);
  }
}

#define PLAIN(SUFFIX, BF16, ROTATE)                                                                                   \
  extern "C" __global__ void __launch_bounds__(256, 3)                                                                \
  quantize_##SUFFIX(const u8* x, u8* codes, u8* scales, float g, int m, int k) {                                      \
    plain<BF16, ROTATE>(x, Target{codes, scales, g, m, k});                                                           \
  }
#define FUSED(SUFFIX, BF16)                                                                                           \
  extern "C" __global__ void __launch_bounds__(256, 3)                                                                \
  silu_quantize_##SUFFIX(const u8* gate, const u8* up, u8* codes, u8* scales, float g, int m, int k, int stride) {    \
    silu<BF16>(gate, up, stride, Target{codes, scales, g, m, k});                                                     \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(1024)                                                                  \
  rmsnorm_quantize_##SUFFIX(const u8* x, const u8* weight, u8* codes, u8* scales, float g, float eps, int m, int k) { \
    rmsnorm<BF16>(x, weight, eps, Target{codes, scales, g, m, k});                                                    \
  }

PLAIN(bf16, true, false)
PLAIN(fp16, false, false)
PLAIN(bf16_rotated, true, true)
PLAIN(fp16_rotated, false, true)
FUSED(bf16, true)
FUSED(fp16, false)
