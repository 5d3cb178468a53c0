package counter

import "testing"

func TestOracleAgreesWithMemory(t *testing.T) {
	const size = 4096
	o, m := NewOracle(size), make(Memory, size)
	for tick := range uint64(300) {
		if m.Tick() != tick {
			t.Fatalf("got tick %d, want %d", m.Tick(), tick)
		}
		if m.Sum() != o.Sum(tick) {
			t.Fatalf("tick %d: sum is %x, oracle says %x", tick, m.Sum(), o.Sum(tick))
		}
		gotTick, gotSum, ok := Parse(m.Report())
		if !ok || gotTick != tick || gotSum != m.Sum() {
			t.Fatalf("report %q reads as %d %x %v", m.Report(), gotTick, gotSum, ok)
		}
		m.Step()
	}
	for at := 8; at < size; at += 8 {
		before := m.Sum()
		m[at] ^= 1
		if m.Sum() == before {
			t.Fatalf("a changed bit at %d does not change the sum", at)
		}
		m[at] ^= 1
	}
	if _, _, ok := Parse("[    0.1] tick"); ok {
		t.Error("another line reads as a report")
	}
}
