/* AVX-512 F, BW, VL, DQ: 24 of 32 registers hold sums in the largest tile. */

/* Tiles of product.h, rows x panels, largest first. */
#define MOE_TILE_ROWS 12
#define MOE_TILE_PANELS 4
#define MOE_TILES TILE(12, 2) TILE(8, 2) TILE(4, 4) TILE(2, 4) TILE(1, 4)

#include "kernels/cpu/attend.h"
#include "kernels/cpu/payload.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/route.h"
#include "kernels/cpu/vectors.h"

const moe_kernels_t moe_kernels_avx512 = {
    .name = "avx512",
    .product = product,
    .embed = embed,
    .rms_norm = rms_norm,
    .swiglu = swiglu,
    .gate_row = gate_row,
    .add = add,
    .combine = combine,
    .rope = rope,
    .store_row = store_row,
    .encode_row = encode_row,
    .decode_row = decode_row,
    .attend = attend,
    .attend_join = attend_join,
    .route = route,
};
