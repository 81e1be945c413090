// The arguments of the kernels in grouped_linear.cpp and grouped_quantized_linear.cpp: rows of x
// that are each multiplied by the matrix of one expert.
#pragma once

#include <vector>

#include "linear.h"

namespace tensorops {

// The rows of each expert: those of `order` that begin where the rows of the expert before end.
struct Groups {
    std::int64_t experts;
    const std::int64_t *order, *ends;

    std::int64_t begin(std::int64_t expert) const { return expert == 0 ? 0 : ends[expert - 1]; }
    std::int64_t count(std::int64_t expert) const { return ends[expert] - begin(expert); }
};

// Results have as many rows as `linear.x`, which repeats those that several experts multiply. The weights of an expert
// follow those of the expert before after `per_expert` rows, of which the first `outputs` are multiplied.
struct GroupedLinear {
    Linear linear;
    Groups groups;
    std::int64_t per_expert, bias_stride;  // the latter from one expert's biases to the next, in bytes
    std::int64_t y_stride;                 // from one row to the next, in elements
};

struct GroupedQuantizedLinear {
    QuantizedLinear linear;
    Groups groups;
    std::int64_t per_expert, y_stride;
};

// Rows sorted by expert, in their order.
class SortedRows {
  public:
    // expert(row) is from 0 to experts - 1.
    template <class Expert>
    SortedRows(std::int64_t rows, std::int64_t experts, Expert expert)
        : order_(static_cast<std::size_t>(rows)), ends_(static_cast<std::size_t>(experts) + 1) {
        for (std::int64_t r = 0; r < rows; ++r) ++ends_[static_cast<std::size_t>(expert(r)) + 1];
        for (std::size_t e = 1; e < ends_.size(); ++e) ends_[e] += ends_[e - 1];
        for (std::int64_t r = 0; r < rows; ++r)  // what begins becomes what ends
            order_[static_cast<std::size_t>(ends_[static_cast<std::size_t>(expert(r))]++)] = r;
    }

    Groups groups() const { return {static_cast<std::int64_t>(ends_.size()) - 1, order_.data(), ends_.data()}; }

  private:
    std::vector<std::int64_t> order_, ends_;
};

}  // namespace tensorops
