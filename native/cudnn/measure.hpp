// Timing of algorithms and of whole configurations.
#pragma once

#include <vector>

#include "cudnn/configuration.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

// Bytes of a problem's tensors.
struct Extent {
  std::size_t x = 0;
  std::size_t w = 0;
  std::size_t y = 0;
  std::array<std::size_t, kMostPointwise> operands{};  // as in Tensors

  std::size_t total() const;
};
Extent extent_of(const Problem& problem);

// The tensors in memory, which may hold more samples than one run takes.
struct Region {
  Tensors tensors;
  Extent size;
};

// Throws std::invalid_argument where `region` is too small for the problem.
void check_sizes(const Problem& problem, const Region& region);

// Times in ms of single runs, after one that is not counted: at least three, and up to `repeats` while
// their sum stays below `budget_ms`. Where the first is above `hopeless_ms`, three are enough, and fewer once
// they are above the budget: what is so slow need not be known so well. Each run takes the next slice
// of the region, so that a region larger than the caches gives what a slice costs inside a mini-batch:
// one hot buffer flatters small micro-batches by up to 17 %. For the same reason all runs but the first are
// given to the device without a pause.
std::vector<double> measure(Engine& engine, Device& device, const Problem& problem, Pass pass,
                            const std::string& algorithm, const Region& region, const Scratch& workspace,
                            int repeats, double budget_ms, double hopeless_ms);

// Times in ms of each configuration run whole, `rounds` times in turns, after one turn that is not counted.
std::vector<std::vector<double>> compare(Engine& engine, Device& device,
                                         const std::vector<const PreparedConfiguration*>& configurations,
                                         const Tensors& tensors, const Scratch& workspace, int rounds);

}  // namespace mucudnn
