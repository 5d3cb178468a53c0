# Improves a round trip through cities by turning parts of it round, at random,
# and keeping what is shorter. Prints the length.
#
#   awk -v seed=1 -v moves=300 -v out=tour -f tour.awk cities tour
FILENAME == ARGV[1] { x[n] = $1; y[n] = $2; n++; next }
{ tour[m++] = $1 }

# Along streets, as in a city of blocks.
function distance(a, b) { return side(x[a] - x[b]) + side(y[a] - y[b]) }

function side(d) { return d < 0 ? -d : d }

function trip(   i, sum) {
	sum = distance(tour[n - 1], tour[0])
	for (i = 1; i < n; i++) sum += distance(tour[i - 1], tour[i])
	return sum
}

function turn(i, j,   t) {
	while (i < j) { t = tour[i]; tour[i++] = tour[j]; tour[j--] = t }
}

END {
	for (; m < n; m++) tour[m] = m
	srand(seed)
	best = trip()
	for (k = 0; k < moves; k++) {
		i = int(rand() * n); j = int(rand() * n)
		if (i > j) { t = i; i = j; j = t }
		turn(i, j)
		now = trip()
		if (now < best) best = now; else turn(i, j)
	}
	printf "" > out
	for (i = 0; i < n; i++) print tour[i] >> out
	printf "%.4f\n", best
}
