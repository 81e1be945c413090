// How attention is cut into items of work, and the memory that they need.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention.h"
#include "attention_blocks.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {  // part of attention.cpp

// With fewer items than kEnoughItems, the keys of long sequences are split into spans of at least kSpanTiles tiles.
constexpr std::int64_t kSpanTiles = 4, kEnoughItems = 32;

// The part of the work that one thread takes at a time: a block of rows, and one of the spans of their keys.
struct Item {
    std::int64_t block, span, spans;
};

template <class T>
struct Plan {
    using C = Compute<T>;
    static constexpr std::int64_t lanes = kLanes<C>;
    static constexpr std::int64_t panel = kColumns * lanes;  // keys of a panel

    const Attention& op;
    std::int64_t group;        // query heads of one key head
    std::int64_t rows;         // of one key head
    std::int64_t block_rows;   // at most, of one item; a multiple of kRows unless direct
    std::int64_t blocks;       // of one key head
    std::int64_t keys, tiles;  // of the longest sequence, as far as a query attends to them
    std::int64_t all_tiles;    // of all blocks
    std::int64_t items;
    bool has_spans;      // whether any keys are split
    std::int64_t width;  // value_dim in whole vectors
    bool direct, packs_values;
    bool in_blocks;       // keys and values, which are unpacked tile by tile
    std::int64_t ahead;   // how many keys later those are that are prefetched; 0: none are
    bool fetches_values;  // with each key its value, where there are too few for `ahead`
    C scale, unit;        // unit: the power of two by which weights are multiplied

    explicit Plan(const Attention& attention) : op(attention) {
        group = op.heads / op.kv_heads;
        rows = group * op.queries;
        direct = rows <= kDirectRows && op.dim % lanes == 0;
        block_rows = direct ? rows : std::min(kBlockRows, round_up(rows, kRows));
        blocks = (rows + block_rows - 1) / block_rows;
        keys = all_tiles = items = 0;
        for (std::int64_t b = 0; b < op.batch; ++b) {
            keys = std::max(keys, reach_of(op, b).keys());
            all_tiles += tiles_of(b) * blocks_each();
        }
        const std::int64_t tile_bytes = kTile * (op.dim + op.value_dim) * static_cast<std::int64_t>(sizeof(T));
        in_blocks = op.format != Format::none;
        ahead =
            direct && !in_blocks && all_tiles / blocks * tile_bytes > kFetchBytes ? ahead_for(tile_bytes / kTile) : 0;
        fetches_values = direct && !in_blocks && ahead == 0 && op.k_stride[2] == op.v_stride[2];
        tiles = tiles_for(keys);
        has_spans = false;
        for (std::int64_t b = 0; b < op.batch; ++b) {
            items += spans_of(b) * blocks_each();
            has_spans |= spans_of(b) > 1;
        }
        width = round_up(op.value_dim, lanes);
        packs_values = !direct || op.value_dim != width;
        scale = static_cast<C>(op.scale);
        const int exponent = 63 - __builtin_clzll(static_cast<unsigned long long>(keys) * 2 - 1);
        unit = static_cast<C>(1.0 / static_cast<double>(std::int64_t{1} << exponent));
    }

    // A power of two, so that pages of usual sizes end where those ahead do. For half types at least a tile: all keys
    // of the next one then arrive while the values of this one are added up, for which float32 has too many bytes.
    static std::int64_t ahead_for(std::int64_t key_and_value_bytes) {
        std::int64_t n = sizeof(T) == 2 ? kTile : 1;
        while (n * key_and_value_bytes < 2 * kAheadBytes) n *= 2;
        return n;
    }

    std::int64_t blocks_each() const { return op.kv_heads * blocks; }  // of a sequence
    static std::int64_t tiles_for(std::int64_t keys) { return (keys + kTile - 1) / kTile; }
    std::int64_t tiles_of(std::int64_t sequence) const { return tiles_for(reach_of(op, sequence).keys()); }
    // Spans of all sequences are about equally long.
    std::int64_t spans_of(std::int64_t sequence) const {
        const std::int64_t own = tiles_of(sequence), most = own / kSpanTiles;
        return most < 2 ? 1 : std::min(most, (kEnoughItems * own + all_tiles - 1) / all_tiles);
    }

    // The first item of each sequence. Without spans, items are blocks, and it is not used.
    void number_items(std::int64_t* first) const {
        if (!has_spans) return;
        std::int64_t next = 0;
        for (std::int64_t b = 0; b < op.batch; ++b) {
            first[b] = next;
            next += spans_of(b) * blocks_each();
        }
    }
    Item item_at(const std::int64_t* first, std::int64_t index) const {
        if (!has_spans) return {index, 0, 1};
        const std::int64_t sequence = std::upper_bound(first, first + op.batch, index) - first - 1;
        const std::int64_t spans = spans_of(sequence), own = index - first[sequence];
        return {sequence * blocks_each() + own / spans, own % spans, spans};
    }

    std::int64_t padded_rows() const { return direct ? block_rows : round_up(block_rows, kRows); }
    // Elements of each part of a thread's memory; all are multiples of a vector's
    std::int64_t query_size() const { return round_up(padded_rows() * op.dim, lanes); }
    std::int64_t key_size() const { return direct ? 0 : panel * op.dim; }
    std::int64_t value_size() const { return packs_values ? kTile * panel : 0; }
    std::int64_t unpacked_size() const { return in_blocks ? kTile * (op.dim + op.value_dim) : 0; }
    std::int64_t score_size() const { return padded_rows() * kTile; }
    std::int64_t result_size() const { return padded_rows() * width; }
    std::int64_t sum_size() const { return padded_rows() * lanes; }
    std::int64_t top_size() const { return round_up(padded_rows(), lanes) * lanes; }
    std::int64_t thread_size() const {
        return query_size() + key_size() + value_size() + unpacked_size() + score_size() + result_size() + sum_size() +
               top_size();
    }
    // The results of a span for the merge: for each row its values, its largest score and its sum of weights
    std::int64_t partial_size() const { return has_spans ? round_up(block_rows * (width + 2), lanes) : 0; }
    std::int64_t flags_size() const { return round_up(op.batch * op.kv_heads * tiles, 64); }  // bytes
    std::int64_t all_rows() const { return op.batch * op.kv_heads * rows; }
};

}  // namespace
}  // namespace tensorops::TENSOROPS_TARGET
