// Activations to NVFP4: alone, with or without a block rotation, or in the tail of RMSNorm or of SiLU(gate) * up.
//
// What binds it: for a few tokens nothing but latency (a launch, one trip to memory and back, and the arithmetic of one
// block by one thread: nothing is exchanged between threads). For many tokens the arithmetic, so each value takes some ten
// operations: the divisions of a block are two reciprocals and Markstein's correction (two fused steps that give the
// correctly rounded quotient), rounding to E2M1 is left to the float adder (see `to_e2m1`), and values stay floats,
// which each form converts or multiplies as it likes; only packed codes are made from bits.
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
//   6  codes as E4M3 bytes, and scales, as hopper.cu takes them with SPREAD 0 (to 4 tokens), zero beyond K; scales beyond
//      M are not written
//   7  the same with SPREAD 1 (to 8 tokens)
//   8  code * s as fp16 panels for wide.cu: [chunk of 128][eight of tokens][16][8 tokens][8 values], zero beyond K;
//      tokens beyond M are not written; beside them, in place of scales, 256 words of zero
//   9  x itself as panels in its own type: no quantization (W4A16)
#include "nvfp4.cuh"

#ifndef FORM
#error "FORM selects the output, 0 to 9"
#endif
static constexpr bool PADDED = FORM == 4 || FORM == 5;  // tokens up to a multiple of 8 are written
static constexpr bool WIDE = FORM >= 4;                 // and K up to a whole chunk
static constexpr bool PANELS = FORM >= 8;

// Where a kernel writes: codes, and scales for the forms that have them.
struct Target {
  u8* codes;
  u8* scales;
  int m, k;
};

DEVICE int padded_blocks(int k) {
  int per_chunk = FORM >= 6 ? 8 : 4 * lane_blocks(k), blocks = k / BLOCK;
  return WIDE ? (blocks + per_chunk - 1) / per_chunk * per_chunk : blocks;
}

// v in [0, 7) to the nearest E2M1 magnitude: with p the power of two at or below max(v, 1), the numbers near
// 1.5 * 2^22 * p are p/2 apart, so adding it rounds v to that grid, ties to even.
DEVICE float to_e2m1(float v) {
  const float p = __uint_as_float(max(__float_as_uint(v) & 0x7F800000u, 0x3F800000u)), far = 6291456.0f;
  return __fmaf_rn(-p, far, __fmaf_rn(p, far, v));
}
// v, a quotient of |x|, as E2M1 with the sign of x. In packed codes a quotient of zero has none.
DEVICE float signed_e2m1(float v, float x) { return copysignf(to_e2m1(v), FORM == 0 && v == 0.0f ? 0.0f : x); }

struct Quantized {
  float v[16];  // e2m1 values
  u32 scale;    // E4M3 byte
};

// a / b, correctly rounded, where `reciprocal` is 1 / b, correctly rounded, and neither it, b, nor the remainder leaves the
// normal numbers. An a for which that is not so gives a quotient that is tiny, if not the right one: no caller minds.
DEVICE float divide(float a, float b, float reciprocal) {
  const float v = __fmul_rn(a, reciprocal);
  return __fmaf_rn(__fmaf_rn(-v, b, a), reciprocal, v);
}
// The input scale g and what follows from it alone: most of a block's first division, while x is still on its way.
struct Rule {
  float g, six, per_six;
  bool plain;  // `six` is where `divide` may take it, and where x / six is zero only if x is
  __device__ __forceinline__ explicit Rule(float g) : g(g), six(__fmul_rn(g, 6.0f)) {
    plain = six > 0x1p-60f && six < 0x1p10f;
    per_six = __frcp_rn(plain ? six : 1.0f);
  }
};

DEVICE Quantized quantize_block(const float (&x)[16], const Rule& rule) {
  Quantized r;
  float top = 0.0f;
#pragma unroll
  for (int i = 0; i < 16; i++) top = max_or_nan(top, fabsf(x[i]));
  if (top != top) {
#pragma unroll
    for (int i = 0; i < 16; i++) r.v[i] = 0.0f;
    r.scale = 0x7F;
    return r;
  }
  // Scales end at 448 and at 2^-9, so neither a quotient that was cut at 512 nor a tiny one that is off matters.
  float wanted = rule.plain ? divide(fminf(top, 512.0f * rule.six), rule.six, rule.per_six) : __fdiv_rn(top, rule.six);
  if (wanted == 0.0f) wanted = 1.0f;
  r.scale = float_to_e4m3(fminf(fmaxf(wanted, 0x1p-9f), 448.0f));
  const float step = __fmul_rn(half_to_float((u16)e4m3x2_to_half2(r.scale)), rule.g), six = 6.0f * step;
  // Outside this range a reciprocal or a remainder could leave the normal numbers: divide there.
  if (step > 0x1p-100f && step < 0x1p15f) {
    const float reciprocal = __frcp_rn(step);
#pragma unroll
    for (int i = 0; i < 16; i++)  // all above is 6, and infinity is gone
      r.v[i] = signed_e2m1(divide(fminf(fabsf(x[i]), six), step, reciprocal), x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 16; i++) r.v[i] = signed_e2m1(fminf(__fdiv_rn(fabsf(x[i]), step), 6.0f), x[i]);
  }
  return r;
}

template <bool BF16> DEVICE u32 pack_16(float low, float high) {
  return BF16 ? floats_to_bf162(low, high) : floats_to_half2(low, high);
}

// Where block b of row m lies in panels, in bytes: 8 values there, the others 128 bytes further. Value s of the block is
// that of column `panel_column`: lanes of the tensor cores take neighbouring values, of decoded weights in their cheap order.
DEVICE u64 panel_piece(int m, int tokens, int b) {
  return (((u64)(b >> 3) * tokens + (m & ~7)) * 2 + 2 * (b & 7)) * 128 + (m & 7) * 16;
}
template <bool BF16> DEVICE constexpr int panel_column(int s) {
  const int lane = (s & 7) >> 1, place = BF16 ? (s >> 3) + 2 * (s & 1) : 2 * (s >> 3) + (s & 1);
  return 4 * lane + place;
}

// Where block b of row m lies for hopper.cu.
struct HopperPlace {
  u8 *codes, *scale;
};
DEVICE HopperPlace hopper_place(const Target& to, int m, int b) {
  const int chunks = padded_blocks(to.k) >> 3, pairs = 4 * chunks, pair = b >> 1;
  const u64 row = 16 * to.m;
  if (FORM == 6)  // a block of all tokens, each with as many zeros behind it; scales [pair of blocks][4 tokens][2]
    return {to.codes + b * 2 * row + m * 32, to.codes + 4 * pairs * row + pair * 8 + m * 2 + (b & 1)};
  // even blocks, odd blocks, scales [block][8 tokens]
  return {to.codes + (b & 1 ? pairs + pair : pair) * row + m * 16, to.codes + 2 * pairs * row + b * 8 + m};
}
// Twice four e2m1 values as signed bytes.
DEVICE u32 twice_as_bytes(const float* v) {
  return prmt(prmt(twice_as_int(v[0]), twice_as_int(v[1]), 0x0040), prmt(twice_as_int(v[2]), twice_as_int(v[3]), 0x0040),
              0x5410);
}

// Writes block b of row m, or zeros where that lies beyond M or K.
template <bool BF16> DEVICE void emit(const Target& to, const Rule& rule, int m, int b, const float (&x)[16]) {
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
  const int panel_tokens = (to.m + 7) & ~7;
  if (FORM == 9) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 w[4];
#pragma unroll
      for (int s = 0; s < 4; s++) {
        const int first = panel_column<BF16>(8 * half + 2 * s), second = panel_column<BF16>(8 * half + 2 * s + 1);
        w[s] = inside ? pack_16<BF16>(x[first], x[second]) : 0u;
      }
      store16(to.codes + panel_piece(m, panel_tokens, b) + half * 128, make_uint4(w[0], w[1], w[2], w[3]));
    }
    return;
  }
  Quantized q;
  if (inside) {
    q = quantize_block(x, rule);
  } else {
#pragma unroll
    for (int i = 0; i < 16; i++) q.v[i] = 0.0f;
    q.scale = 0;
  }
  const float scale = half_to_float((u16)e4m3x2_to_half2(q.scale));
  if (FORM == 0) {
    u32 codes[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++) {  // as a float of the least exponents e2m1 shows its code
      const u32 bits = __float_as_uint(q.v[i] * 0x1p-126f);
      codes[i >> 3] |= ((bits >> 22 & 7u) | (bits >> 28 & 8u)) << (4 * (i & 7));
    }
    *(uint2*)(to.codes + at * 8) = make_uint2(codes[0], codes[1]);
    to.scales[at] = (u8)q.scale;
  } else if (FORM == 1) {
    u32 bytes[4];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      bytes[i] = twice_as_bytes(q.v + 4 * i);
      sum = dp4a(bytes[i], 0x01010101u, sum);
    }
    const int vec = lane_blocks(to.k);
    store16(to.codes + lane_piece(m, to.m, b, vec, 1, 0), make_uint4(bytes[0], bytes[1], bytes[2], bytes[3]));
    *(uint2*)(to.scales + lane_scale(m, to.m, b, vec) * 8) = make_uint2(__float_as_uint(scale), (u32)(MAGIC_BITS - 16 * sum));
  } else if (FORM == 2) {
    const int vec = lane_blocks(to.k);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 w[4];
#pragma unroll
      for (int s = 0; s < 4; s++)
        w[s] = pack_16<false>(q.v[8 * half + half_pair_element(2 * s)], q.v[8 * half + half_pair_element(2 * s + 1)]);
      store16(to.codes + lane_piece(m, to.m, b, vec, 2, half), make_uint4(w[0], w[1], w[2], w[3]));
    }
    ((float*)to.scales)[lane_scale(m, to.m, b, vec)] = scale;
  } else if (FORM == 3 || FORM == 4 || FORM == 8) {
#pragma unroll
    for (int i = 0; i < 16; i++) q.v[i] *= scale;
    const int vec = lane_blocks(to.k), tiles = (to.m + 7) >> 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 w[4];
#pragma unroll
      for (int s = 0; s < 4; s++) {
        const int first = 2 * s, second = 2 * s + 1;
        if (FORM == 3) w[s] = pack_16<BF16>(q.v[8 * half + first], q.v[8 * half + second]);
        if (FORM == 4)
          w[s] = pack_16<false>(q.v[8 * half + half_pair_element(first)], q.v[8 * half + half_pair_element(second)]);
        if (FORM == 8)
          w[s] = pack_16<false>(q.v[panel_column<false>(8 * half + first)], q.v[panel_column<false>(8 * half + second)]);
      }
      u8* place = to.codes;
      if (FORM == 3) place += at * 32 + half * 16;
      if (FORM == 4) place += fragment_piece(m, b * 16 + 8 * half, tiles, vec) * 16;
      if (FORM == 8) place += panel_piece(m, panel_tokens, b) + half * 128;
      store16(place, make_uint4(w[0], w[1], w[2], w[3]));
    }
  } else if (FORM == 6 || FORM == 7) {
    u32 w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = exact_e4m3x4(q.v[4 * i], q.v[4 * i + 1], q.v[4 * i + 2], q.v[4 * i + 3]);
    const uint4 bytes = make_uint4(w[0], w[1], w[2], w[3]);
    const HopperPlace there = hopper_place(to, m, b);
    store16(there.codes, bytes);
    if (FORM == 6) store16(there.codes + 16, make_uint4(0, 0, 0, 0));
    *there.scale = (u8)q.scale;
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

struct Place {
  int m, b;
  bool there;
};
// Panels come with 256 words of zero, which wide.cu wants.
DEVICE void clear(const Target& to) {
  if (PANELS && blockIdx.x == 0)
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) ((u32*)to.scales)[i] = 0;
}
// The block of this thread. Panels want 8 tokens side by side, other forms a row's blocks.
DEVICE Place place(const Target& to) {
  const int blocks = padded_blocks(to.k), rows = PADDED ? (to.m + 7) & ~7 : to.m;
  if (PANELS && to.m >= 8) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x, eight = (i >> 3) / blocks;
    const int m = eight * 8 + (i & 7);
    return {m, (int)((i >> 3) - eight * blocks), m < to.m};
  }
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x, m = i / blocks;
  return {(int)m, (int)(i - m * blocks), m < (u32)rows};
}

// x [M, K]; one thread a block, grid.x * blockDim.x >= padded rows * padded blocks
template <bool BF16, bool ROTATE> DEVICE void plain(const u8* x, float g, Target to) {
  let_next_launch();
  const Rule rule(g);
  const Place at = place(to);
  wait_for_previous();
  clear(to);
  if (!at.there) return;
  const int m = at.m, b = at.b;
  float v[16];
  if (m < to.m && b < to.k / BLOCK) {
    load_block<BF16>(x + ((u64)m * to.k + b * 16) * 2, v);
    if (ROTATE) rotate<BF16>(v);
  }
  emit<BF16>(to, rule, m, b, v);
}

// gate, up [M, K], rows `stride` values apart: silu(gate) rounded, times up, rounded, quantized
template <bool BF16> DEVICE void silu(const u8* gate, const u8* up, int stride, float g, Target to) {
  let_next_launch();
  const Rule rule(g);
  const Place at = place(to);
  wait_for_previous();
  clear(to);
  if (!at.there) return;
  const int m = at.m, b = at.b;
  float v[16], u[16];
  if (m < to.m && b < to.k / BLOCK) {
    const u64 from = ((u64)m * stride + b * 16) * 2;
    load_block<BF16>(gate + from, v);
    load_block<BF16>(up + from, u);
#pragma unroll
    for (int j = 0; j < 16; j++) {
      const float act = through_16<BF16>(__fdiv_rn(v[j], __fadd_rn(1.0f, expf(-v[j]))));
      v[j] = through_16<BF16>(__fmul_rn(act, u[j]));
    }
  }
  emit<BF16>(to, rule, m, b, v);
}

// x [M, K], weight [K]: x * rsqrt(mean(x^2) + eps) in float32, rounded, times weight, rounded, quantized.
// One CTA a row; blockDim.x a multiple of 32, at most 1024.
template <bool BF16> DEVICE void rmsnorm(const u8* x, const u8* weight, float eps, float g, Target to) {
  __shared__ float partial[32];
  let_next_launch();
  const Rule rule(g);
  wait_for_previous();
  clear(to);
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
    emit<BF16>(to, rule, m, b, v);
  }
}

#define PLAIN(SUFFIX, BF16, ROTATE)                                                                                   \
  extern "C" __global__ void __launch_bounds__(256, 3)                                                                \
  quantize_##SUFFIX(const u8* x, u8* codes, u8* scales, float g, int m, int k) {                                      \
    plain<BF16, ROTATE>(x, g, Target{codes, scales, m, k});                                                           \
  }
#define FUSED(SUFFIX, BF16)                                                                                           \
  extern "C" __global__ void __launch_bounds__(256, 3)                                                                \
  silu_quantize_##SUFFIX(const u8* gate, const u8* up, u8* codes, u8* scales, float g, int m, int k, int stride) {    \
    silu<BF16>(gate, up, stride, g, Target{codes, scales, m, k});                                                     \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(1024)                                                                  \
  rmsnorm_quantize_##SUFFIX(const u8* x, const u8* weight, u8* codes, u8* scales, float g, float eps, int m, int k) { \
    rmsnorm<BF16>(x, weight, eps, g, Target{codes, scales, m, k});                                                    \
  }

PLAIN(bf16, true, false)
PLAIN(fp16, false, false)
PLAIN(bf16_rotated, true, true)
PLAIN(fp16_rotated, false, true)
FUSED(bf16, true)
FUSED(fp16, false)
