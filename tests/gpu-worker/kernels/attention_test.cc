#include "tests/gpu-worker/kernels/tables.h"

namespace ringmaster::gpu_worker::kernels {
namespace {

// Keys and values of one head, in tiles as the device keeps them. What was never stored is NaN.
struct Cache {
  size_t head_dim;
  std::vector<std::vector<uint16_t>> keys, values;
  std::vector<const uint16_t*> k_tiles, v_tiles;

  Cache(const Table& table, size_t head_dim_, const std::vector<std::vector<float>>& k,
        const std::vector<std::vector<float>>& v)
      : head_dim(head_dim_) {
    for (size_t t = 0; t < (k.size() + kTile - 1) / kTile; ++t) {
      keys.emplace_back(head_dim * kTile, uint16_t{0x7E00});
      values.emplace_back(head_dim * kTile, uint16_t{0x7E00});
    }
    for (size_t j = 0; j < k.size(); ++j)
      table.store_kv(keys[j / kTile].data(), values[j / kTile].data(), j % kTile, k[j].data(), v[j].data(),
                     head_dim);
    for (size_t t = 0; t < keys.size(); ++t) {
      k_tiles.push_back(keys[t].data());
      v_tiles.push_back(values[t].data());
    }
  }
};

class Attention : public EveryTable {
 protected:
  Cache random_cache(size_t keys, size_t head_dim) {
    std::vector<std::vector<float>> k, v;
    for (size_t j = 0; j < keys; ++j) {
      k.push_back(normal(head_dim));
      v.push_back(normal(head_dim));
    }
    return Cache(table(), head_dim, k, v);
  }

  // All spans of one query, merged and normalised.
  std::vector<float> attend_all(const Cache& cache, const float* q, uint32_t last_key) {
    std::vector<float> sums(cache.head_dim), later(cache.head_dim), out(cache.head_dim);
    float max_sum[2], later_max_sum[2];
    for (uint32_t first = 0; first <= last_key; first += kSpan) {
      const size_t t = first / kTile;
      table().attend(first == 0 ? sums.data() : later.data(), first == 0 ? max_sum : later_max_sum, q,
                     cache.head_dim, &last_key, 1, &cache.k_tiles[t], &cache.v_tiles[t], first,
                     cache.head_dim);
      if (first > 0) table().attend_merge(sums.data(), max_sum, later.data(), later_max_sum, cache.head_dim);
    }
    table().attend_finish(out.data(), sums.data(), max_sum, cache.head_dim);
    return out;
  }

  // Softmax over everything at once, in double precision, on the halves that were stored.
  static std::vector<double> reference(const Cache& cache, const float* q, uint32_t last_key) {
    std::vector<double> scores;
    double top = -HUGE_VAL;
    for (uint32_t j = 0; j <= last_key; ++j) {
      double score = 0;
      for (size_t d = 0; d < cache.head_dim; ++d)
        score += static_cast<double>(q[d]) *
                 static_cast<double>(float_of_half(cache.keys[j / kTile][d * kTile + j % kTile]));
      scores.push_back(score);
      top = std::max(top, score);
    }
    double total = 0;
    std::vector<double> out(cache.head_dim);
    for (uint32_t j = 0; j <= last_key; ++j) {
      const double weight = std::exp(scores[j] - top);
      total += weight;
      for (size_t d = 0; d < cache.head_dim; ++d)
        out[d] += weight *
                  static_cast<double>(float_of_half(cache.values[j / kTile][j % kTile * cache.head_dim + d]));
    }
    for (double& x : out) x /= total;
    return out;
  }
};

TEST_P(Attention, EqualsSoftmaxOverEverything) {
  for (const size_t head_dim : {16, 32, 64, 80, 128, 256})
    for (const uint32_t keys : {1u, 7u, 16u, 17u, 127u, 128u, 129u, 300u}) {
      const Cache cache = random_cache(keys, head_dim);
      const std::vector<float> q = normal(head_dim, 2 / std::sqrt(static_cast<float>(head_dim)));
      const std::vector<float> out = attend_all(cache, q.data(), keys - 1);
      const std::vector<double> expected = reference(cache, q.data(), keys - 1);
      for (size_t d = 0; d < head_dim; ++d)
        ASSERT_NEAR(static_cast<double>(out[d]), expected[d], 2e-6)
            << table().name << " head " << head_dim << " keys " << keys << " at " << d;
    }
}

TEST_P(Attention, BitsOfAQueryDoNotDependOnItsCompany) {
  const size_t head_dim = 64;
  const Cache cache = random_cache(kSpan, head_dim);
  const std::vector<float> q = normal(kQueries * head_dim);
  for (const std::vector<uint32_t>& last : {std::vector<uint32_t>{5, 5, 6, 6},
                                            {0, 1, 2, 3},
                                            {15, 16, 17, 18},
                                            {127, 127, 127, 127},
                                            {3, 90, 2000, 64}}) {
    std::vector<float> alone(kQueries * head_dim), alone_max_sum(kQueries * 2);
    for (size_t i = 0; i < kQueries; ++i)
      table().attend(&alone[i * head_dim], &alone_max_sum[i * 2], &q[i * head_dim], head_dim, &last[i], 1,
                     cache.k_tiles.data(), cache.v_tiles.data(), 0, head_dim);
    for (size_t nq = 2; nq <= kQueries; ++nq)
      for (size_t first = 0; first + nq <= kQueries; ++first) {
        std::vector<float> sums(nq * head_dim), max_sum(nq * 2);
        table().attend(sums.data(), max_sum.data(), &q[first * head_dim], head_dim, &last[first], nq,
                       cache.k_tiles.data(), cache.v_tiles.data(), 0, head_dim);
        EXPECT_EQ(std::memcmp(sums.data(), &alone[first * head_dim], sums.size() * 4), 0) << table().name;
        EXPECT_EQ(std::memcmp(max_sum.data(), &alone_max_sum[first * 2], max_sum.size() * 4), 0)
            << table().name;
      }
  }
}

TEST_P(Attention, ExtremeScoresStayFinite) {
  const size_t head_dim = 32;
  std::vector<std::vector<float>> k(200, std::vector<float>(head_dim, 0)),
      v(200, std::vector<float>(head_dim, 1));
  for (size_t j = 0; j < 200; ++j) {
    k[j][0] = (j % 2 == 0 ? 1 : -1) * 60000.0f;
    v[j][1] = static_cast<float>(j % 2);
  }
  const Cache cache(table(), head_dim, k, v);
  std::vector<float> q(head_dim, 0);
  q[0] = 1.6f;  // scores of +-96,000
  const std::vector<float> out = attend_all(cache, q.data(), 199);
  EXPECT_NEAR(out[0], 1, 1e-6);
  EXPECT_NEAR(out[1], 0, 1e-6);
}

TEST_P(Attention, StoredValuesBeyondHalfSaturate) {
  const Cache cache(table(), 16, {std::vector<float>(16, 1e9f)}, {std::vector<float>(16, -1e9f)});
  EXPECT_EQ(float_of_half(cache.keys[0][0]), 65504.0f);
  EXPECT_EQ(float_of_half(cache.values[0][15]), -65504.0f);
}

INSTANTIATE_TEST_SUITE_P(Tables, Attention, testing::ValuesIn(available_tables()), table_name);

}  // namespace
}  // namespace ringmaster::gpu_worker::kernels
