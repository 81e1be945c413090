// The tests of one kernel or of a few that are alike, each for t.dtype and t.length.
#pragma once

#include "harness.h"

namespace tensorops::tests {

void attention(Test& t);                 // a number of keys
void block_linear(Test& t);              // a number of blocks
void interleaved_linear(Test& t);        // a number of blocks
void causal_conv1d(Test& t);             // a number of channels
void conversion(Test& t);                // in rows of that many
void cross_entropy(Test& t);             // a number of classes
void dequantize(Test& t);                // a number of groups
void gated_delta_rule(Test& t);          // a number of features of a value
void grouped_linear(Test& t);            // a number of inputs
void grouped_quantized_linear(Test& t);  // a number of groups
void linear(Test& t);                    // a number of inputs
void linear_cross_entropy(Test& t);      // a number of classes
void panel_linear(Test& t);              // a number of groups
void quantize(Test& t);                  // a number of groups
void quantized_linear(Test& t);          // a number of groups
void rope(Test& t);                      // a number of features
void sample(Test& t);                    // a number of candidates
void top_k(Test& t);                     // a number of candidates
void weighted_sums(Test& t);             // a number of features
void widened_rows(Test& t);              // a number of features
void vector_math(Test& t);               // a number of numbers
void vector_math_on_every_float(Test& t);

// Whether work is distributed rightly, which no kernel is needed for.
bool parallel();
// Whether the handlers of XLA's foreign functions share out work rightly.
bool xla_calls();
// Whether calls of plans are run by rows rightly.
bool plans();

}  // namespace tensorops::tests
