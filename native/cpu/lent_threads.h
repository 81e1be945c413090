// Threads for callers whose kernels follow each other closely; parallel.cpp explains which threads there are.
#pragma once

#include "parallel.h"

namespace tensorops {

// A team of threads of our own, of at most so many; 0: as many as kernels may use. They stay awake for a moment after
// each part, and whoever calls while they serve another call does its work alone.
Lender lent_threads(int most);

}  // namespace tensorops
