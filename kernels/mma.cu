// Y = alpha * X W^T on the tensor cores with the operands swapped: weights are the 16-row operand of mma.m16n8k16,
// tokens the 8-column one, so 1 to 8 tokens fill an instruction that would otherwise be padded to 128.
//
// Portable from sm_80 on. The order of k within a product is free if both operands agree on it, so a lane takes 16
// bytes of a row as they lie (two blocks of 16 codes) for its part of eight instructions, and nothing is exchanged.
// e2m1 * e4m3 is exact in fp16 (and in bf16, for W4A16 with bf16 X), sums are float32, so a result differs from the
// exact one by float32 rounding only.
// What binds it: decoding, about 15 ALU operations per 8 weights, and the latency of loads at the occupancy that its
// registers leave; the tensor pipe idles until some 32 tokens. What was traded: activations come as ready-made
// fragments (`fragment_piece`), written once by quantize.cu, 4 bytes more per value than codes would be, but read
// by every warp in whole cache lines without shared memory or a barrier in the loop.
//
// K is split over 2^split_bits warps of the CTA, each a contiguous range, and over 2^rank_bits CTAs of a cluster; partial
// sums are added in that order. Any N, any K divisible by 16 (VEC=1 where K is not divisible by 32); M is looped over by
// grid.y in steps of 8 * TILES tokens, correct for any M and meant for 64 or less.
#include "nvfp4.cuh"

#ifndef X_BF16
#error "X_BF16 is the type of X and of the decoded weights: 1 for bf16, 0 for fp16"
#endif
#ifndef VEC
#define VEC 2
#endif
static constexpr bool BF16 = X_BF16;
static constexpr int WARPS = 8;  // at most, a CTA

// 8 codes times their scale (both halves of `scale`), times 2^-14 unless the architecture decodes without a step
DEVICE void decode(u32 q, u32 scale, u32 (&h)[4]) {
  if (BF16)
    e2m1x8_to_bf162(q, h);
  else
    e2m1x8_to_half2(q, h);
#pragma unroll
  for (int i = 0; i < 4; i++) h[i] = BF16 ? mul_bf162(h[i], scale) : mul_half2(h[i], scale);
}
static constexpr float UNDO = BF16 ? 16384.0f : E2M1_UNSTEP;

template <int ROWS, int TILES, int DEPTH>
DEVICE void product(const u8* weight, const u8* scale, const u8* x, u16* y, float alpha, int m, int n, int k,
                    u32 split_bits, u32 rank_bits, int fp16) {
  extern __shared__ float partial[];
  constexpr int ACCS = ROWS * TILES < 4 ? 2 : 1;                   // chains of mma per result
  constexpr int PITCH = TILES == 1 ? 8 : 8 * TILES + 8, TALL = 16 * ROWS;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const Cut cut(warp, split_bits, rank_bits);
  const int groups = cut.groups, group = cut.group, tile = cut.tile, rank = cut.rank, ranks = cut.ranks;
  const int chunks = (int)((u32)(k + 64 * VEC - 1) / (64 * VEC)), per = (chunks + cut.parts - 1) >> cut.part_bits;
  const int first = cut.part * per, last = min(first + per, chunks);
  const int row0 = (tile * groups + group) * TALL, tile0 = blockIdx.y * TILES, tiles = (m + 7) >> 3;

  let_next_launch();
  // This lane's first row, and how far the others lie from it; beyond N they repeat the last row and are not stored.
  const int top = min(row0 + g, n - 1);
  const u8* wp = weight + (u64)top * (u32)(k / 2) + (u32)first * (32 * VEC);
  const u8* sp = scale + (u64)top * (u32)(k / 16) + (u32)first * (4 * VEC);
  u32 down[ROWS][2];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int h = 0; h < 2; h++) down[r][h] = (u32)(min(row0 + r * 16 + h * 8 + g, n - 1) - top);
  // Where K ends within a chunk, a lane beyond it reads the chunk's first weights: its activations are zeros.
  const int whole = (k - t * 16 * VEC + 64 * VEC - 1) / (64 * VEC);
  Unit<VEC> u[DEPTH][ROWS][2];
#pragma unroll
  for (int d = 0; d < DEPTH; d++) {
    if (first + d < last) {
      const u32 mine = first + d < whole ? t : 0;
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int h = 0; h < 2; h++)
          load(u[d][r][h], wp + (down[r][h] * (u32)(k / 2) + mine * (8 * VEC)), sp + (down[r][h] * (u32)(k / 16) + mine * VEC));
    }
    wp += 32 * VEC;
    sp += 4 * VEC;
  }
  wait_for_previous();

  float acc[ACCS][ROWS][TILES][4], sum[ROWS][TILES][4];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int c = 0; c < TILES; c++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        sum[r][c][i] = 0.0f;
#pragma unroll
        for (int a = 0; a < ACCS; a++) acc[a][r][c][i] = 0.0f;
      }

  // Pieces of activations stay AHEAD of their use; tiles beyond M hold anything and are not stored.
  constexpr int PIECES = 2 * VEC, AHEAD = TILES <= 2 ? PIECES : TILES == 4 ? 2 : 1;
  const u32 x_step = tiles * (PIECES * 512);
  const u8* xp = x + ((u64)first * tiles + tile0) * (PIECES * 512) + lane * 16;
  uint4 b[AHEAD][TILES];
  if (first < last)
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
#pragma unroll
      for (int c = 0; c < TILES; c++) b[j][c] = load16(xp + (c * PIECES + j) * 512);
  for (int base = first; base < last; base += DEPTH) {
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const int chunk = base + d;
      if (chunk < last) {
        const u8* next = chunk + 1 < last ? xp + x_step : xp;
        u32 s[ROWS][2];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
          for (int h = 0; h < 2; h++)
            s[r][h] = BF16 ? e4m3x2_to_bf162_up(u[d][r][h].scale & 0x7F7Fu) : e4m3x2_to_half2(u[d][r][h].scale);
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
#pragma unroll
          for (int r = 0; r < ROWS; r++) {
            u32 w[2][4];
#pragma unroll
            for (int h = 0; h < 2; h++)
              decode(u[d][r][h].q[j], j < 2 ? low_twice(s[r][h]) : high_twice(s[r][h]), w[h]);
#pragma unroll
            for (int c = 0; c < TILES; c++) {
              const uint4 x8 = b[j % AHEAD][c];
              mma_16x8x16<BF16>(acc[0][r][c], w[0][0], w[1][0], w[0][1], w[1][1], x8.x, x8.y);
              mma_16x8x16<BF16>(acc[ACCS - 1][r][c], w[0][2], w[1][2], w[0][3], w[1][3], x8.z, x8.w);
            }
          }
#pragma unroll
          for (int c = 0; c < TILES; c++)
            b[j % AHEAD][c] = load16(j + AHEAD < PIECES ? xp + (c * PIECES + j + AHEAD) * 512
                                                        : next + (c * PIECES + j + AHEAD - PIECES) * 512);
        }
        // Tensor cores add by truncation; over a long K that shows, so a chunk's sums are added as float32 rounds.
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
          for (int c = 0; c < TILES; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
              sum[r][c][i] += ACCS == 2 ? acc[0][r][c][i] + acc[ACCS - 1][r][c][i] : acc[0][r][c][i];
#pragma unroll
              for (int a = 0; a < ACCS; a++) acc[a][r][c][i] = 0.0f;
            }
        if (chunk + DEPTH < last) {
          const u32 mine = chunk + DEPTH < whole ? t : 0;
#pragma unroll
          for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int h = 0; h < 2; h++)
              load(u[d][r][h], wp + (down[r][h] * (u32)(k / 2) + mine * (8 * VEC)), sp + (down[r][h] * (u32)(k / 16) + mine * VEC));
        }
        wp += 32 * VEC;
        sp += 4 * VEC;
        xp = next;
      }
    }
  }

  // partial: [part of K][group][row][token]
  float* mine = partial + warp * (TALL * PITCH);
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int c = 0; c < TILES; c++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        *(float2*)(mine + (r * 16 + h * 8 + g) * PITCH + c * 8 + 2 * t) = make_float2(sum[r][c][2 * h], sum[r][c][2 * h + 1]);
      }
  __syncthreads();
  if (ranks > 1) cluster_sync();
  alpha *= UNDO;
  const int split = 1 << split_bits, rows = groups * TALL, tokens = min(8 * TILES, m - tile0 * 8);
  for (int i = threadIdx.x + rank * blockDim.x; i < rows * tokens; i += blockDim.x * ranks) {
    const int token = i / rows, r = i - token * rows;
    if (tile * rows + r >= n) continue;
    float total = 0.0f;
    for (int c = 0; c < ranks; c++)
      for (int p = 0; p < split; p++) {
        const float* from = partial + (p * rows + r) * PITCH + token;
        total += ranks > 1 ? load_of_rank(from, c) : *from;
      }
    y[(u64)(tile0 * 8 + token) * n + tile * rows + r] = fp16 ? float_to_half(total * alpha) : float_to_bf16(total * alpha);
  }
  if (ranks > 1) cluster_sync();  // no CTA leaves while another reads its sums
}

// CTAS: how many CTAs of 8 warps a multiprocessor shall hold at least, 0 to leave the registers to the compiler.
#define KERNEL(ROWS, TILES, DEPTH, CTAS)                                                                             \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, CTAS)                                                     \
  mma_r##ROWS##_t##TILES##_d##DEPTH(const u8* weight, const u8* scale, const u8* x, u16* y, float alpha, int m,      \
                                    int n, int k, u32 split_bits, u32 rank_bits, int fp16) {                         \
    product<ROWS, TILES, DEPTH>(weight, scale, x, y, alpha, m, n, k, split_bits, rank_bits, fp16);                   \
  }
// KERNELS is a list of KERNEL(row tiles, token tiles, depth, ctas); the host's is in resetcli/cuda/families/mma.py.
KERNELS
