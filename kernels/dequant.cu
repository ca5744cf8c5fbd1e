// NVFP4 weights [N, K] to bf16 or fp16, code * block scale without the global factor: exact in either type.
//
// For prefill, where a library's matrix product on 16-bit weights beats ours. What binds it: writing 2 bytes a value
// (and reading 9/16). One thread takes 32 values where rows allow 16-byte loads, 16 elsewhere, and writes each 8 as
// 16 bytes; a warp's stores cover whole sectors, which is all that memory asks for. What was traded: shared memory
// would make each store instruction contiguous as well, for a synchronization.
#include "nvfp4.cuh"

template <bool BF16> DEVICE void emit_block(u32 low, u32 high, u32 scale, u8* out) {
  u32 q[2] = {low, high};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 h[4], w[4];
    if (BF16)
      e2m1x8_to_bf162(q[i], h);
    else
      e2m1x8_to_half2(q[i], h);
#pragma unroll
    for (int s = 0; s < 4; s++) h[s] = BF16 ? mul_bf162(h[s], scale) : mul_half2(h[s], scale);
    if (half_pair_element(1) == 1 && !BF16) {
#pragma unroll
      for (int s = 0; s < 4; s++) w[s] = h[s];
    } else {  // pairs (0 4) (1 5) (2 6) (3 7) to natural order, and off the step of 2^-14
      const u32 up = BF16 ? 0x46804680u : 0x74007400u;
#pragma unroll
      for (int s = 0; s < 4; s++) h[s] = BF16 ? mul_bf162(h[s], up) : mul_half2(h[s], up);
      w[0] = prmt(h[0], h[1], 0x5410);
      w[1] = prmt(h[2], h[3], 0x5410);
      w[2] = prmt(h[0], h[1], 0x7632);
      w[3] = prmt(h[2], h[3], 0x7632);
    }
    store16(out + 16 * i, make_uint4(w[0], w[1], w[2], w[3]));
  }
}

template <bool BF16> DEVICE u32 pair(u32 two) {
  return BF16 ? e4m3x2_to_bf162_up(two & 0x7F7Fu) : e4m3x2_to_half2(two);
}

template <bool BF16> DEVICE void dequantize(const u8* weight, const u8* scale, u8* out, int n, int k) {
  let_next_launch();
  wait_for_previous();
  const u64 blocks = (u64)n * (k / BLOCK), i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (k & 31) {
    if (i >= blocks) return;
    const uint2 q = load_weights8(weight + i * 8);
    const u32 s = pair<BF16>(load_scale1(scale + i));
    emit_block<BF16>(q.x, q.y, low_twice(s), out + i * 32);
  } else {
    if (2 * i >= blocks) return;
    const uint4 q = load_weights16(weight + i * 16);
    const u32 s = pair<BF16>(load_scales2(scale + i * 2));
    emit_block<BF16>(q.x, q.y, low_twice(s), out + i * 64);
    emit_block<BF16>(q.z, q.w, high_twice(s), out + i * 64 + 32);
  }
}

extern "C" __global__ void __launch_bounds__(256)
dequantize_bf16(const u8* weight, const u8* scale, u8* out, int n, int k) {
  dequantize<true>(weight, scale, out, n, k);
}
extern "C" __global__ void __launch_bounds__(256)
dequantize_fp16(const u8* weight, const u8* scale, u8* out, int n, int k) {
  dequantize<false>(weight, scale, out, n, k);
}

// The same from layout "tiles" (resetcli/cuda/families/hopper.py), first rows of `tile0` on: one thread takes the 16
// bytes of a lane, that is two rows and, of four blocks, four columns each, which it writes as 8 bytes: four lanes make
// a sector. What lies beyond N and K is not written.
template <bool BF16> DEVICE void store_four(u32 bytes, u32 scale, u8* out) {  // E4M3 bytes of codes, times 2^-6
  const u32 low = e4m3x2_to_half2(bytes), high = e4m3x2_to_half2(bytes >> 16);
  u32 w[2];
  if (BF16) {
    const float s = half_to_float((u16)scale) * 64.0f;
    const float2 a = half2_to_float2(low), b = half2_to_float2(high);
    w[0] = (u32)float_to_bf16(a.x * s) | (u32)float_to_bf16(a.y * s) << 16;
    w[1] = (u32)float_to_bf16(b.x * s) | (u32)float_to_bf16(b.y * s) << 16;
  } else {
    const u32 s = low_twice(scale), up = 0x54005400u;  // 2^6: codes first, for their product with a scale may be small
    w[0] = mul_half2(mul_half2(low, up), s);
    w[1] = mul_half2(mul_half2(high, up), s);
  }
  *(uint2*)out = make_uint2(w[0], w[1]);
}

template <bool BF16> DEVICE void from_tiles(const u8* tiles, u8* out, int rows, int k, int chunks) {
  let_next_launch();
  wait_for_previous();
  // a warp chunk of 1152 bytes is 64 pieces of 16 bytes and scales
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const u64 part = i >> 6;  // tile, chunk, warp
  const int piece = (int)(i & 63), half = piece >> 5, lane = piece & 31, g = lane >> 2, t = lane & 3;
  const int warp = (int)(part & 3);
  const u64 unit = part >> 2;
  const int tile = (int)(unit / chunks), chunk = (int)(unit - (u64)tile * chunks);
  const int row = tile * 64 + warp * 16 + g;
  if (row >= rows) return;
  const u8* from = tiles + part * 1152;
  const uint4 words = load_weights16(from + half * 512 + lane * 16);
  const uint2 scales = *(const uint2*)(from + 1024 + g * 16 + half * 8);  // two k32, each [row half][block]
  const u32 q[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int j = 0; j < 4; j++) {  // [k32][row half]
    const int r = row + 8 * (j & 1), column = chunk * 128 + half * 64 + (j >> 1) * 32 + 4 * t;
    if (r >= rows) continue;
    const u32 two = (j >> 1 ? scales.y : scales.x) >> (16 * (j & 1)), s = e4m3x2_to_half2(two);
    u8* to = out + ((u64)r * k + column) * 2;
    if (column < k) store_four<BF16>(first_four(q[j]), s, to);
    if (column + 16 < k) store_four<BF16>(second_four(q[j]), s >> 16, to + 32);
  }
}

extern "C" __global__ void __launch_bounds__(256)
dequantize_tiles_bf16(const u8* tiles, u8* out, int rows, int k, int chunks) {
  from_tiles<true>(tiles, out, rows, k, chunks);
}
extern "C" __global__ void __launch_bounds__(256)
dequantize_tiles_fp16(const u8* tiles, u8* out, int rows, int k, int chunks) {
  from_tiles<false>(tiles, out, rows, k, chunks);
}
