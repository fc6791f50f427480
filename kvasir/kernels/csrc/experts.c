/* See experts.h. A call goes through parts (as many pairs as have KX1_ROWS_BYTES of different rows), a part through
 * waves (as many pairs, sorted by expert, as KX1_WORK_BYTES hold), a wave through five steps, each spread over the
 * pool: gather, gate and up, quantise, down, scatter (within down). */
#include "experts.h"

#include "pool.h"
#include "scratch.h"

#include <stdbool.h>
#include <string.h>

#define UNIT_ROWS 128 /* rows of one expert that are computed together: their blocks stay in the L2 cache */
#define PAIRS_PER_TASK 16

/* Pairs of one expert, consecutive in `order` */
typedef struct {
    int32_t expert;
    int64_t first, n_pairs;
} unit;

typedef struct {
    const kx1_isa *isa;
    const kx1_layer *layer;
    const uint8_t *rows;
    const int32_t *pair_rows, *pair_ids;
    float *out;
    int n_threads;
    int64_t n_blocks, n_ff_blocks; /* of a row, of its product of gate and up */

    /* lists of the call */
    int32_t *row_place; /* [n_rows] place of a row among the part's prepared rows, or -1 */
    int32_t *place_row; /* [n_pairs] and back */
    int32_t *order;     /* [n_pairs] the part's pairs, sorted by expert */
    int64_t *expert_start; /* [n_expert + 1] */
    unit *units;        /* [n_pairs] */

    /* working memory of the part */
    char *prepared;    /* [places, n_blocks] blocks */
    int32_t *row_scale; /* [places] */
    int64_t n_places;

    /* working memory of the wave, by pair in `order` from wave_first on; blocks are block-major within a unit */
    int64_t wave_first, wave_pairs, wave_units, tile;
    const unit *wave;
    char *x, *h_blocks;
    int32_t *x_scale, *h_scale;
    float *gate, *up, *partial;
} job;

static kx1_block *block_at(char *blocks, int64_t i) { return (kx1_block *)(blocks + (size_t)i * kx1_block_size()); }

static int64_t n_tiles(int64_t n_rows, int64_t tile) { return (n_rows + tile - 1) / tile; }
static int64_t at_most(int64_t value, int64_t limit) { return value < limit ? value : limit; }

static void prepare_row(void *context, int64_t place) {
    job *j = context;
    const uint8_t *packed = j->rows + (int64_t)j->place_row[place] * j->n_blocks * KX1_PACKED_BLOCK;
    kx1_unpack(packed, j->layer->d_model, block_at(j->prepared, place * j->n_blocks), 1, &j->row_scale[place]);
}

/* The unit of the wave's pair number p */
static const unit *unit_of(const job *j, int64_t p) {
    int64_t low = 0, high = j->wave_units - 1, pair = j->wave_first + p;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (j->wave[middle].first <= pair) low = middle;
        else high = middle - 1;
    }
    return j->wave + low;
}

static void gather_pairs(void *context, int64_t task) {
    job *j = context;
    int64_t stop = at_most((task + 1) * PAIRS_PER_TASK, j->wave_pairs);
    for (int64_t p = task * PAIRS_PER_TASK; p < stop; p++) {
        const unit *u = unit_of(j, p);
        int64_t start = (u->first - j->wave_first) * j->n_blocks, t = j->wave_first + p - u->first;
        int64_t place = j->row_place[j->pair_rows[j->order[j->wave_first + p]]];
        for (int64_t b = 0; b < j->n_blocks; b++)
            memcpy(block_at(j->x, start + b * u->n_pairs + t), block_at(j->prepared, place * j->n_blocks + b),
                   kx1_block_size());
        j->x_scale[p] = j->row_scale[place];
    }
}

static void stack_matmul(const job *j, const kx1_stack *stack, int32_t expert, int64_t start, int64_t stop, int64_t cols,
                         const kx1_block *x, const int32_t *scale, int64_t n, float *out, int64_t ld_out) {
    j->isa->matmul(stack->type, stack->base + expert * stack->stride, start, stop, cols, stack->exponents[expert], x,
                   scale, n, out, ld_out);
}

static void gate_and_up(void *context, int64_t task) {
    job *j = context;
    int64_t d_ff = j->layer->d_ff, tiles = n_tiles(d_ff, j->tile);
    const unit *u = j->wave + task / tiles;
    int64_t start = task % tiles * j->tile, stop = at_most(start + j->tile, d_ff), p = u->first - j->wave_first;
    const kx1_block *x = block_at(j->x, p * j->n_blocks);
    float *gate = j->gate + p * d_ff, *up = j->up + p * d_ff;
    stack_matmul(j, &j->layer->gate, u->expert, start, stop, j->layer->d_model, x, j->x_scale + p, u->n_pairs, gate, d_ff);
    stack_matmul(j, &j->layer->up, u->expert, start, stop, j->layer->d_model, x, j->x_scale + p, u->n_pairs, up, d_ff);
    for (int64_t t = 0; t < u->n_pairs; t++) {
        float *h = gate + t * d_ff + start;
        j->isa->silu_mul(h, up + t * d_ff + start, h, stop - start);
    }
}

static void quantise_products(void *context, int64_t task) {
    job *j = context;
    int64_t stop = at_most((task + 1) * PAIRS_PER_TASK, j->wave_pairs), d_ff = j->layer->d_ff;
    for (int64_t p = task * PAIRS_PER_TASK; p < stop; p++) {
        const unit *u = unit_of(j, p);
        int64_t start = (u->first - j->wave_first) * j->n_ff_blocks, t = j->wave_first + p - u->first;
        j->h_scale[p] = j->isa->quantise(j->gate + p * d_ff, d_ff, block_at(j->h_blocks, start + t), u->n_pairs);
    }
}

static void down(void *context, int64_t task) {
    job *j = context;
    int64_t d_model = j->layer->d_model, tiles = n_tiles(d_model, j->tile);
    const unit *u = j->wave + task / tiles;
    int64_t start = task % tiles * j->tile, stop = at_most(start + j->tile, d_model), p = u->first - j->wave_first;
    float *partial = j->partial + p * d_model;
    stack_matmul(j, &j->layer->down, u->expert, start, stop, j->layer->d_ff, block_at(j->h_blocks, p * j->n_ff_blocks),
                 j->h_scale + p, u->n_pairs, partial, d_model);
    for (int64_t t = 0; t < u->n_pairs; t++)
        memcpy(j->out + j->order[u->first + t] * d_model + start, partial + t * d_model + start,
               (size_t)(stop - start) * sizeof(float));
}

static void compute_wave(job *j) {
    const kx1_layer *layer = j->layer;
    int n_threads = pool_threads(3 * j->wave_pairs * layer->d_model * layer->d_ff, j->n_threads);
    int64_t pair_tasks = n_tiles(j->wave_pairs, PAIRS_PER_TASK);
    pool_run(n_threads, pair_tasks, gather_pairs, j);
    j->tile = pool_tile(layer->d_ff, j->wave_units, n_threads);
    pool_run(n_threads, j->wave_units * n_tiles(layer->d_ff, j->tile), gate_and_up, j);
    pool_run(n_threads, pair_tasks, quantise_products, j);
    j->tile = pool_tile(layer->d_model, j->wave_units, n_threads);
    pool_run(n_threads, j->wave_units * n_tiles(layer->d_model, j->tile), down, j);
}

/* Bytes of the wave's memory for one pair; each array gets 64 bytes more for its alignment. */
static int64_t work_bytes_per_pair(const job *j) {
    int64_t block = (int64_t)kx1_block_size();
    return (j->n_blocks + j->n_ff_blocks) * block + (2 * j->layer->d_ff + j->layer->d_model + 2) * 4;
}

static void *carve(char **memory, int64_t n_bytes) {
    void *start = *memory;
    *memory += (n_bytes + 63) / 64 * 64;
    return start;
}

static void place_wave(job *j, char *memory, int64_t n_pairs) {
    int64_t block = (int64_t)kx1_block_size();
    j->x = carve(&memory, n_pairs * j->n_blocks * block);
    j->h_blocks = carve(&memory, n_pairs * j->n_ff_blocks * block);
    j->gate = carve(&memory, n_pairs * j->layer->d_ff * 4);
    j->up = carve(&memory, n_pairs * j->layer->d_ff * 4);
    j->partial = carve(&memory, n_pairs * j->layer->d_model * 4);
    j->x_scale = carve(&memory, n_pairs * 4);
    j->h_scale = carve(&memory, n_pairs * 4);
}

/* Sort the part's pairs by expert and cut them into units; returns their number. */
static int64_t make_units(job *j, int64_t first, int64_t stop, int64_t unit_rows) {
    int64_t n_expert = j->layer->n_expert, n_units = 0;
    memset(j->expert_start, 0, (size_t)(n_expert + 1) * sizeof *j->expert_start);
    for (int64_t i = first; i < stop; i++) j->expert_start[j->pair_ids[i] + 1]++;
    for (int64_t e = 0; e < n_expert; e++) {
        int64_t n = j->expert_start[e + 1], n_parts = n_tiles(n, unit_rows), start = j->expert_start[e];
        j->expert_start[e + 1] += start;
        for (int64_t k = 0; k < n_parts; k++) {
            int64_t from = start + n * k / n_parts, to = start + n * (k + 1) / n_parts;
            j->units[n_units++] = (unit){(int32_t)e, from, to - from};
        }
    }
    for (int64_t i = first; i < stop; i++) j->order[j->expert_start[j->pair_ids[i]]++] = (int32_t)i;
    return n_units;
}

static int compute_part(job *j, int64_t first, int64_t stop) {
    int64_t per_pair = work_bytes_per_pair(j), most_pairs = KX1_WORK_BYTES / per_pair;
    if (most_pairs < 1) most_pairs = 1;
    int64_t n_units = make_units(j, first, stop, at_most(UNIT_ROWS, most_pairs));
    int64_t held = at_most(most_pairs, stop - first);
    char *memory = scratch_take((size_t)(held * per_pair + 7 * 64));
    if (!memory) return KV_NO_MEMORY;
    place_wave(j, memory, held);
    for (int64_t i = 0; i < n_units;) {
        j->wave = j->units + i;
        j->wave_first = j->units[i].first;
        j->wave_pairs = j->wave_units = 0;
        while (i < n_units && j->wave_pairs + j->units[i].n_pairs <= held) {
            j->wave_pairs += j->units[i++].n_pairs;
            j->wave_units++;
        }
        compute_wave(j);
    }
    scratch_give(memory);
    return KV_OK;
}

/* Give the rows of pairs from `first` on their places, until `most_places` are taken; returns where it stopped. */
static int64_t place_rows(job *j, int64_t first, int64_t n_pairs, int64_t most_places) {
    int64_t i = first;
    for (j->n_places = 0; i < n_pairs; i++) {
        int32_t row = j->pair_rows[i];
        if (j->row_place[row] >= 0) continue;
        if (j->n_places == most_places) break;
        j->place_row[j->n_places] = row;
        j->row_place[row] = (int32_t)j->n_places++;
    }
    return i;
}

static int compute_parts(job *j, int64_t n_rows, int64_t n_pairs) {
    int64_t row_bytes = j->n_blocks * (int64_t)kx1_block_size() + 4;
    int64_t most_places = at_most(at_most(n_rows, n_pairs), KX1_ROWS_BYTES / row_bytes);
    char *memory = scratch_take((size_t)(most_places * row_bytes + 64));
    if (!memory) return KV_NO_MEMORY;
    j->prepared = memory;
    j->row_scale = (int32_t *)(memory + most_places * (row_bytes - 4));
    int error = KV_OK;
    for (int64_t first = 0, stop; first < n_pairs && !error; first = stop) {
        stop = place_rows(j, first, n_pairs, most_places);
        pool_run(pool_threads(256 * j->n_places * j->n_blocks, j->n_threads), j->n_places, prepare_row, j);
        error = compute_part(j, first, stop);
        for (int64_t place = 0; place < j->n_places; place++) j->row_place[j->place_row[place]] = -1;
    }
    scratch_give(memory);
    return error;
}

static bool is_stack(const kx1_stack *stack, int64_t n_out, int64_t n_in) {
    return kx1_row_bytes(stack->type, n_in) > 0 && n_out > 0 && stack->stride >= 0;
}

static int check_pair(const kx1_layer *layer, int64_t n_rows, int32_t row, int32_t id) {
    if (row < 0 || row >= n_rows) return KV_BAD_ROW_NUMBER;
    if (id < 0 || id >= layer->n_expert) return KV_BAD_EXPERT_ID;
    bool is_known = layer->gate.exponents[id] >= 0 && layer->up.exponents[id] >= 0 && layer->down.exponents[id] >= 0;
    return is_known ? KV_OK : KV_UNKNOWN_EXPONENT;
}

static int check_call(const kx1_layer *layer, int64_t n_rows, const int32_t *pair_rows, const int32_t *pair_ids,
                      int64_t n_pairs) {
    int64_t d_model = layer->d_model, d_ff = layer->d_ff, n_expert = layer->n_expert;
    if (n_expert <= 0 || n_expert > INT32_MAX || n_rows < 0 || n_rows > INT32_MAX || n_pairs < 0 || n_pairs > INT32_MAX)
        return KV_BAD_SHAPE;
    if (!is_stack(&layer->gate, d_ff, d_model) || !is_stack(&layer->up, d_ff, d_model) ||
        !is_stack(&layer->down, d_model, d_ff))
        return KV_BAD_SHAPE;
    int worst = KV_OK; /* KV_UNKNOWN_EXPONENT only if nothing else is wrong */
    for (int64_t i = 0; i < n_pairs; i++) {
        int error = check_pair(layer, n_rows, pair_rows[i], pair_ids[i]);
        if (error && error != KV_UNKNOWN_EXPONENT) return error;
        if (error) worst = error;
    }
    return worst;
}

int kx1_experts(const kx1_isa *isa, const kx1_layer *layer, const uint8_t *rows, int64_t n_rows,
                const int32_t *pair_rows, const int32_t *pair_ids, int64_t n_pairs, float *out, int n_threads) {
    int64_t bad_row;
    int error = check_call(layer, n_rows, pair_rows, pair_ids, n_pairs);
    if (!error) error = kx1_check_packed(rows, n_rows, layer->d_model, &bad_row);
    if (error || !n_pairs) return error;
    int64_t lists = n_rows * 4 + n_pairs * (8 + (int64_t)sizeof(unit)) + (layer->n_expert + 1) * 8;
    char *memory = scratch_take((size_t)(lists + 5 * 64));
    if (!memory) return KV_NO_MEMORY;
    char *rest = memory;
    job j = {.isa = isa, .layer = layer, .rows = rows, .pair_rows = pair_rows, .pair_ids = pair_ids, .out = out,
             .n_threads = n_threads, .n_blocks = layer->d_model / KX1_BLOCK, .n_ff_blocks = layer->d_ff / KX1_BLOCK};
    j.row_place = carve(&rest, n_rows * 4);
    j.place_row = carve(&rest, n_pairs * 4);
    j.order = carve(&rest, n_pairs * 4);
    j.expert_start = carve(&rest, (layer->n_expert + 1) * 8);
    j.units = carve(&rest, n_pairs * (int64_t)sizeof(unit));
    memset(j.row_place, 0xff, (size_t)n_rows * 4);
    error = compute_parts(&j, n_rows, n_pairs);
    scratch_give(memory);
    return error;
}
