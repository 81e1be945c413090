// Elements of rows that are no neighbours, copied to where they are, for elementwise kernels.
#pragma once

#include <algorithm>

#include "rows.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

inline constexpr std::int64_t kGatheredBytes = 4096;

// The memory for elements_of_row, of an operand that may be absent, in whole cache lines
inline std::int64_t gathered_room(const Rows& rows, std::int64_t item) {
    if (!rows.data || rows.are_neighbours()) return 0;
    return (std::min(rows.length * item, kGatheredBytes) + 63) / 64 * 64;
}

template <class Bits>
void gather(char* to, const char* from, std::int64_t n, std::int64_t step) {
    for (std::int64_t i = 0; i < n; ++i) {
        TENSOROPS_ONE_BY_ONE(i);
        std::memcpy(to + i * static_cast<std::int64_t>(sizeof(Bits)), from + i * step, sizeof(Bits));
    }
}

template <class T>
void gather_elements(T* to, const char* from, std::int64_t n, std::int64_t step) {
    using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
    gather<Bits>(reinterpret_cast<char*>(to), from, n, step);
}

// Up to kGatheredBytes of a row from an element on: in memory of the caller, or where they are if they are neighbours
inline const char* elements_of_row(const Rows& rows, std::int64_t row, std::int64_t from, std::int64_t n,
                                   std::int64_t item, char* memory) {
    const bool are_neighbours = rows.are_neighbours();
    const char* p = rows.row(row) + from * (are_neighbours ? item : rows.step);
    if (are_neighbours) return p;
    if (item == 8)
        gather<std::uint64_t>(memory, p, n, rows.step);
    else if (item == 4)
        gather<std::uint32_t>(memory, p, n, rows.step);
    else
        gather<std::uint16_t>(memory, p, n, rows.step);
    return memory;
}

}  // namespace tensorops::TENSOROPS_TARGET
