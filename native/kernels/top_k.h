// The arguments of the kernel in top_k.cpp.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

// Integers, whose dtype is Dtype::other
struct IntegerKind {
    int bytes;
    bool is_signed;
};

struct TopK {
    Rows x;           // at least one row; of 32 bits or less, rows of fewer than 2^32 - 1 elements
    std::int64_t k;   // from 1 to the length of a row
    bool largest;     // else the smallest
    char* values;     // k for each row, one row after another
    char* indices;    // likewise
    int index_bytes;  // of an index: 4 or 8
    Dtype dtype;
    IntegerKind integer;
};

}  // namespace tensorops
