// Y = alpha * X W^T for 1 to 8 tokens on the CUDA cores, weights straight from the checkpoint's rows.
//
// What binds it: at one token, memory, so the design is a stream. A warp owns ROWS rows; a lane reads 16 bytes of each
// (two blocks of 16 codes) per chunk of 1024 along K and keeps DEPTH chunks of all its rows in flight, from before
// griddepcontrol.wait on: weights do not depend on the kernel before this one. Next come the two pipes that decoding and
// dp4a keep busy for a third of the time: a warp asks for its next chunk after the products of this one. With more
// tokens they bind, then L1 for the activations, which is why several rows share each activation that is read.
//
// The paper's three choices (arXiv 2606.13233, appendix) and how each is switched off for the ablation:
//   C1  a weight tile is read once for all tokens       TOKENS=1 and one grid.y layer a token reads it for each
//   C2  several rows and accumulator chains a thread    kernel gemv_r1_d1_c1: one row, one chunk, one chain
//   C3  weights are dequantized in registers only       STAGE=1 sends them through shared memory
//
// ARITH selects the arithmetic on this one skeleton:
//   1  int8: 2*e2m1 is an integer, a block is four dp4a, exact; then one float32 FMA with each scale. An int that
//      starts at MAGIC_BITS reads as a float without conversion. One token: signs split into two lookups and two sums
//      (fewest ALU operations). More: bytes 16 + w, unsigned, with -16 * sum(x) in the sum's start, so that decoding
//      is paid once and each token costs four dp4a (OFFSET=0/1 overrides). Lookups and shifts share a pipe that
//      issues every other clock, dp4a and multiplications another one: some shifts are dp2a's, to load both alike.
//   2  half2: products of codes are exact in fp16, as is a block's sum (at most 8 of them a half).
//   3  W4A16, bf16 X; 4  W4A16, fp16 X: weights to float32, FMA in float32.
// What was traded: rows whose K is not divisible by 32 are 8-byte aligned, and take a build of VEC=1 with half as wide
// loads; N's tail recomputes the last rows instead of masking them (the same values are written twice).
//
// Weights read best in one full wave of CTAs, so rows come in 2 to 6: of 17408x5120 an H200 has 33 warps a
// multiprocessor with 4 rows each, one more than fit, and 27 with 5, which do. The next launch may start once this
// one's first loads are under way (`late` 0) or when a warp of each CTA is through (1: it takes less memory from it then).
//
// K is split over 2^split_bits warps of the CTA and over 2^rank_bits CTAs of a cluster; partial sums are added in that
// order, so results do not depend on timing. Any N >= ROWS, any K divisible by 16.
#include "nvfp4.cuh"

#ifndef ARITH
#error "ARITH selects the arithmetic, 1 to 4"
#endif
#ifndef TOKENS
#error "TOKENS is 1 to 8"
#endif
#ifndef VEC
#define VEC 2
#endif
#ifndef OFFSET
#define OFFSET (TOKENS > 1)
#endif
#ifndef STAGE
#define STAGE 0
#endif
#define ROWS_FIRST (ARITH == 1 && TOKENS == 2 && !STAGE)  // see multiply_chunk
static constexpr int WARPS = 8;  // at most, a CTA

#if ARITH == 1
static constexpr int WORDS = OFFSET ? 4 : 8;  // of 4 bytes that a decoded block takes
static constexpr float UNDO = 0.25f;          // 2x times 2w
// Of a block's four shifts, how many go to the pipe of dp4a. With three, the 22 instructions of one token's decoding and
// dp4a halve exactly; the others as measured.
static constexpr int MOVED = TOKENS == 1 ? 3 : TOKENS <= 3 ? 4 : 2;
#elif ARITH == 2
static constexpr int WORDS = 8;
static constexpr float UNDO = E2M1_UNSTEP;
#else
static constexpr int WORDS = 16;
static constexpr float UNDO = E2M1_UNSTEP;
#endif

// A block's 16 weights as the arithmetic wants them.
DEVICE void decode(u32 first, u32 second, u32 (&w)[WORDS], u32 low) {
  const u32 q[2] = {first, second};
#pragma unroll
  for (int i = 0; i < 2; i++) {
#if ARITH == 1
    u32 a[2], b[2];
    const int moved = (MOVED + i) / 2;
    if (OFFSET) {
      e2m1x8_to_offset(q[i], a, low, moved);
      w[2 * i] = a[0], w[2 * i + 1] = a[1];
    } else {
      e2m1x8_split(q[i], a, b, low, moved);
      w[2 * i] = a[0], w[2 * i + 1] = a[1];
      w[WORDS / 2 + 2 * i] = b[0], w[WORDS / 2 + 2 * i + 1] = b[1];
    }
#else
    u32 h[4];
    e2m1x8_to_half2(q[i], h);
#pragma unroll
    for (int j = 0; j < 4; j++) {
#if ARITH == 2
      w[4 * i + j] = h[j];
#else
      const float2 f = half2_to_float2(h[j]);
      w[8 * i + half_pair_element(2 * j)] = __float_as_uint(f.x);
      w[8 * i + half_pair_element(2 * j + 1)] = __float_as_uint(f.y);
#endif
    }
#endif
  }
}

#if STAGE
// The ablation of C3: decoded weights by way of shared memory.
DEVICE void through_shared(u32 (&w)[WORDS], u32* slot) {
#pragma unroll
  for (int i = 0; i < WORDS; i += 4)
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "r"(shared_address(slot + i * 32)), "r"(w[i]), "r"(w[i + 1]), "r"(w[i + 2]), "r"(w[i + 3]));
  __syncwarp(__activemask());
#pragma unroll
  for (int i = 0; i < WORDS; i += 4)
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[i]), "=r"(w[i + 1]), "=r"(w[i + 2]), "=r"(w[i + 3])
                 : "r"(shared_address(slot + i * 32)));
  __syncwarp(__activemask());
}
#endif

// One token's block: its activations and scale.
struct Block {
#if ARITH == 1
  u32 x[4];
  float scale;
  int start;
#elif ARITH == 2
  u32 x[8];
  float scale;
#else
  float x[16];
#endif
};

// Block b of a token, from where the lane's activations and scales of the chunk begin.
static constexpr int PIECES = ARITH == 1 ? VEC : 2 * VEC;         // of 16 bytes, that a lane reads of a token and chunk
static constexpr int SCALE_BYTES = ARITH == 1 ? 8 : 4;            // of a block
DEVICE void load(Block& t, const u8* x, const u8* scale, int b, int token, u32 k) {
#if ARITH == 1
  const uint4 v = load16(x + (token * PIECES + b) * 512);
  const float2 s = load_float2(scale + (token * 32 * VEC + b) * SCALE_BYTES);
  t.x[0] = v.x, t.x[1] = v.y, t.x[2] = v.z, t.x[3] = v.w;
  t.scale = s.x;
  t.start = __float_as_int(s.y);
#elif ARITH == 2
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint4 v = load16(x + (token * PIECES + 2 * b + i) * 512);
    t.x[4 * i] = v.x, t.x[4 * i + 1] = v.y, t.x[4 * i + 2] = v.z, t.x[4 * i + 3] = v.w;
  }
  t.scale = *(const float*)(scale + (token * 32 * VEC + b) * SCALE_BYTES);
#else
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint4 v = load16(x + (2 * b + i) * 16 + (u64)token * (2 * k));
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float2 f = pair_to_float2<ARITH == 3>(words[j]);
      t.x[8 * i + 2 * j] = f.x;
      t.x[8 * i + 2 * j + 1] = f.y;
    }
  }
#endif
}

// acc + (sum of the block's 16 products) * the scales
DEVICE float multiply(const u32 (&w)[WORDS], float scale, const Block& t, float acc) {
#if ARITH == 1
  int sum;
  if (OFFSET) {
    sum = t.start;
#pragma unroll
    for (int i = 0; i < 4; i++) sum = dp4a_unsigned(w[i], t.x[i], sum);
  } else {
    int minus = 0;
    sum = MAGIC_BITS;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      sum = dp4a(w[i], t.x[i], sum);
      minus = dp4a(w[WORDS / 2 + i], t.x[i], minus);
    }
    sum -= minus;
  }
  // (MAGIC + sum) * scale - MAGIC * scale: exact, both products having few bits
  return fmaf(fmaf(__int_as_float(sum), t.scale, -MAGIC * t.scale), scale, acc);
#elif ARITH == 2
  u32 a = mul_half2(w[0], t.x[0]), b = mul_half2(w[4], t.x[4]);
#pragma unroll
  for (int i = 1; i < 4; i++) {
    a = fma_half2(w[i], t.x[i], a);
    b = fma_half2(w[4 + i], t.x[4 + i], b);
  }
  const float2 f = half2_to_float2(add_half2(a, b));
  return fmaf(f.x + f.y, scale * t.scale, acc);
#else
  float a = __uint_as_float(w[0]) * t.x[0], b = __uint_as_float(w[8]) * t.x[8];
#pragma unroll
  for (int i = 1; i < 8; i++) {
    a = fmaf(__uint_as_float(w[i]), t.x[i], a);
    b = fmaf(__uint_as_float(w[8 + i]), t.x[8 + i], b);
  }
  return fmaf(a + b, scale, acc);
#endif
}

// Adds a lane's part of a chunk to the sums: all rows' blocks with each token's block in turn, or, where two tokens'
// activations of the whole chunk fit into registers, row after row, so that the last rows' weights may come later.
template <int ROWS, int CHAINS>
DEVICE void multiply_chunk(const Unit<VEC> (&u)[ROWS], float (&acc)[CHAINS][ROWS * TOKENS], const u8* x, const u8* x_scale,
                           u32 k, u32 low, u32* staged) {
  float s[ROWS][VEC];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const float2 f = e4m3x2_to_float2(u[r].scale);
    s[r][0] = f.x;
    s[r][VEC - 1] = VEC == 2 ? f.y : f.x;
  }
#if ROWS_FIRST && STAGE
#error "through shared memory blocks come first"
#elif ROWS_FIRST
  Block block[VEC][TOKENS];
#pragma unroll
  for (int b = 0; b < VEC; b++)
#pragma unroll
    for (int t = 0; t < TOKENS; t++) load(block[b][t], x, x_scale, b, t, k);
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int b = 0; b < VEC; b++) {
      u32 w[WORDS];
      decode(u[r].q[2 * b], u[r].q[2 * b + 1], w, low);
#pragma unroll
      for (int t = 0; t < TOKENS; t++) {
        float& sum = acc[b % CHAINS][r * TOKENS + t];
        sum = multiply(w, s[r][b], block[b][t], sum);
      }
    }
#else
#pragma unroll
  for (int b = 0; b < VEC; b++) {
    u32 w[ROWS][WORDS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      decode(u[r].q[2 * b], u[r].q[2 * b + 1], w[r], low);
#if STAGE
      through_shared(w[r], staged);
#endif
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
      Block block;
      load(block, x, x_scale, b, t, k);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        float& sum = acc[b % CHAINS][r * TOKENS + t];
        sum = multiply(w[r], s[r][b], block, sum);
      }
    }
  }
#endif
}

// Sums over the warp of V values a lane, V a power of two: lane l ends up with the sum of value `reduced_index(l)`.
template <int V> DEVICE float reduce(float (&v)[V], int lane) {
#pragma unroll
  for (int o = 16, n = V; o; o >>= 1) {
    if (n > 1) {
      n >>= 1;
#pragma unroll
      for (int i = 0; i < V / 2; i++)
        if (i < n) {
          const bool up = lane & o;
          const float send = up ? v[i] : v[i + n], keep = up ? v[i + n] : v[i];
          v[i] = keep + __shfl_xor_sync(~0u, send, o);
        }
    } else {
      v[0] += __shfl_xor_sync(~0u, v[0], o);
    }
  }
  return v[0];
}
template <int V> DEVICE int reduced_index(int lane) {
  int index = 0;
#pragma unroll
  for (int o = 16, n = V; o; o >>= 1)
    if (n > 1) {
      n >>= 1;
      if (lane & o) index += n;
    }
  return index;
}
DEVICE constexpr int power_of_two(int n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

DEVICE void store(u16* y, u64 at, float v, int fp16) { y[at] = fp16 ? float_to_half(v) : float_to_bf16(v); }

template <int ROWS, int DEPTH, int CHAINS>
DEVICE void gemv(const u8* weight, const u8* scale, const u8* x, const u8* x_scale, u16* y, float alpha, int m, int n,
                 int k, u32 split_bits, u32 rank_bits, int fp16, int late) {
  constexpr int V = power_of_two(ROWS * TOKENS);
  __shared__ float partial[WARPS][V];
#if STAGE
  __shared__ uint4 slots[WARPS][WORDS / 4 * 32];
  u32* const staged = (u32*)slots[threadIdx.x >> 5] + (threadIdx.x & 31) * 4;
#else
  u32* const staged = nullptr;
#endif
  const int lane = threadIdx.x & 31;
  const Cut cut(threadIdx.x >> 5, split_bits, rank_bits);
  const int first = cut.part, parts = cut.parts, row = min((cut.tile * cut.groups + cut.group) * ROWS, n - ROWS);
  const u32 row_bytes = (u32)k / 2, row_scales = (u32)k / 16;
  // Chunks of this lane: every parts-th from the first on, as far as K goes.
  const int count = ((int)((u32)k / (16 * VEC)) - lane - first * 32 + 32 * parts - 1) >> (5 + cut.part_bits);

  const u8* wp = weight + (u64)row * row_bytes + (u32)(first * 32 + lane) * (8 * VEC);
  const u8* sp = scale + (u64)row * row_scales + (u32)(first * 32 + lane) * VEC;
  const u32 weight_step = parts * (256 * VEC), scale_step = parts * (32 * VEC);
  Unit<VEC> u[DEPTH][ROWS];
#pragma unroll
  for (int d = 0; d < DEPTH; d++) {
    if (d < count)
#pragma unroll
      for (int r = 0; r < ROWS; r++) load(u[d][r], wp + (u64)r * row_bytes, sp + r * row_scales);
    wp += weight_step;
    sp += scale_step;
  }
  if (!late) let_next_launch();
  wait_for_previous();

#if ARITH <= 2
  const u64 start = (u64)first * m + blockIdx.y * TOKENS;
  const u8* xp = x + start * (PIECES * 512) + lane * 16;
  const u8* xsp = x_scale + (start * 32 + lane) * (VEC * SCALE_BYTES);
  const u32 x_step = parts * m * (PIECES * 512), x_scale_step = parts * m * (32 * VEC * SCALE_BYTES);
#else
  const u8* xp = x + (u64)blockIdx.y * TOKENS * k * 2 + (u32)(first * 32 + lane) * (32 * VEC);
  const u8* xsp = x_scale;
  const u32 x_step = parts * (32 * 32 * VEC), x_scale_step = 0;
#endif
  const u32 low = hidden(TWICE_LOW);  // see e2m1x8_split
  float acc[CHAINS][ROWS * TOKENS];
#pragma unroll
  for (int c = 0; c < CHAINS; c++)
#pragma unroll
    for (int i = 0; i < ROWS * TOKENS; i++) acc[c][i] = 0.0f;

  for (int base = 0; base < count; base += DEPTH) {
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      if (base + d < count) {
        multiply_chunk<ROWS, CHAINS>(u[d], acc, xp, xsp, k, low, staged);
        if (base + d + DEPTH < count)
#pragma unroll
          for (int r = 0; r < ROWS; r++) load(u[d][r], wp + (u64)r * row_bytes, sp + r * row_scales);
        wp += weight_step;
        sp += scale_step;
        xp += x_step;
        xsp += x_scale_step;
      }
    }
  }

  if (late) let_next_launch();
  u32 thread;  // read again, so that what follows from it was not in registers all the time
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  const Cut again(thread >> 5, split_bits, rank_bits);
  const int groups = again.groups, tile = again.tile, rank = again.rank, ranks = again.ranks;
  float v[V];
#pragma unroll
  for (int i = 0; i < V; i++) {
    v[i] = 0.0f;
    if (i < ROWS * TOKENS)
#pragma unroll
      for (int c = 0; c < CHAINS; c++) v[i] += acc[c][i];
  }
  alpha *= UNDO;
  const float sum = reduce<V>(v, lane);
  const int index = reduced_index<V>(lane);
  const bool lead = (lane & (32 / V - 1)) == 0 && index < ROWS * TOKENS;
  if (parts == 1) {
    const int row = min((tile * groups + again.group) * ROWS, n - ROWS);
    if (lead) store(y, (u64)(blockIdx.y * TOKENS + index % TOKENS) * n + row + index / TOKENS, sum * alpha, fp16);
    return;
  }
  if (lead) partial[thread >> 5][index] = sum;
  __syncthreads();
  if (ranks > 1) cluster_sync();
  // The CTA of rank r writes each ranks-th value.
  const int values = groups * ROWS * TOKENS, split = 1 << split_bits;
  for (int i = threadIdx.x * ranks + rank; i < values; i += blockDim.x * ranks) {
    const int g = i / (ROWS * TOKENS), j = i - g * (ROWS * TOKENS);
    float total = 0.0f;
    for (int c = 0; c < ranks; c++)
      for (int p = 0; p < split; p++) {
        const float* from = &partial[p * groups + g][j];
        total += ranks > 1 ? load_of_rank(from, c) : *from;
      }
    const int at = min((tile * groups + g) * ROWS, n - ROWS) + j / TOKENS;
    store(y, (u64)(blockIdx.y * TOKENS + j % TOKENS) * n + at, total * alpha, fp16);
  }
  if (ranks > 1) cluster_sync();  // no CTA leaves while another reads its sums
}

// What bounds the registers of a kernel: on Hopper their number, where one is given; elsewhere the compiler leaves as
// many as CTAS CTAs of 8 warps a multiprocessor have, or takes what it likes where that is 0.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define HAS_MAXNREG 1
#else
#define HAS_MAXNREG 0
#endif
#define BODY(ROWS, DEPTH, CHAINS)                                                                                     \
  gemv_r##ROWS##_d##DEPTH##_c##CHAINS(const u8* weight, const u8* scale, const u8* x, const u8* x_scale, u16* y,      \
                                      float alpha, int m, int n, int k, u32 split_bits, u32 rank_bits, int fp16,      \
                                      int late) {                                                                     \
    gemv<ROWS, DEPTH, CHAINS>(weight, scale, x, x_scale, y, alpha, m, n, k, split_bits, rank_bits, fp16, late);       \
  }
#define BY_CTAS(ROWS, DEPTH, CHAINS, CTAS)                                                                            \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, CTAS) BODY(ROWS, DEPTH, CHAINS)
#if HAS_MAXNREG
#define BY_REGISTERS(ROWS, DEPTH, CHAINS, CTAS, REGISTERS)                                                            \
  extern "C" __global__ void __maxnreg__(REGISTERS) BODY(ROWS, DEPTH, CHAINS)
#else
#define BY_REGISTERS(ROWS, DEPTH, CHAINS, CTAS, REGISTERS) BY_CTAS(ROWS, DEPTH, CHAINS, CTAS)
#endif
// KERNELS is a list of these two; the host's own is in resetcli/cuda/families/gemv.py.
KERNELS
