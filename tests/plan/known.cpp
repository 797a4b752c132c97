// What tests/plan/test_samplers.py compares with: std::shuffle as libstdc++ has it.
//   g++ -O2 -o known known.cpp && ./known minstd 1000 42 3
// prints, for each of 3 epochs, the polynomial hash of 1000 numbers shuffled with seed 42.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

template <class Engine> static void run(int n, int seed, int epochs) {
    Engine engine(seed);
    std::vector<int> items(n);
    for (int i = 0; i < n; i++)
        items[i] = i;
    for (int epoch = 0; epoch < epochs; epoch++) {
        std::shuffle(items.begin(), items.end(), engine);
        unsigned long long sum = 0;
        for (int item : items)
            sum = sum * 1000003 + item;
        std::printf("%llu\n", sum);
    }
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    int n = std::atoi(argv[2]), seed = std::atoi(argv[3]), epochs = std::atoi(argv[4]);
    if (std::strcmp(argv[1], "minstd") == 0)
        run<std::default_random_engine>(n, seed, epochs);
    else
        run<std::mt19937>(n, seed, epochs);
}
