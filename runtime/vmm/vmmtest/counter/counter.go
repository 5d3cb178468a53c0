// Package counter is the program that guests of the contract suite run: it
// keeps changing memory in a way that whoever knows the number of ticks can
// predict, so that a guest's own report shows whether its memory is right.
//
// It owns the arithmetic and the form of the report. It is shared by the test
// guest, the fake VMM and the suite, and does no I/O.
package counter

import (
	"encoding/binary"
	"fmt"
)

const (
	headBytes   = 8  // the tick
	wordsATick  = 64 // changed by each tick, all over the memory
	multiplier  = 0x9e3779b97f4a7c15
	reportStart = "tick "
)

// Memory is what the counter lives in. All state is in it: who continues on a
// copy of the bytes continues the count.
type Memory []byte

// Tick is the number of ticks so far.
func (m Memory) Tick() uint64 { return binary.LittleEndian.Uint64(m) }

// Step does one tick.
func (m Memory) Step() {
	tick := m.Tick() + 1
	words := uint64(len(m)-headBytes) / 8
	x := tick * multiplier
	for range wordsATick {
		x ^= x >> 29
		x *= multiplier
		x ^= x >> 32
		at := headBytes + (x%words)*8
		binary.LittleEndian.PutUint64(m[at:], binary.LittleEndian.Uint64(m[at:])*3+x+tick)
	}
	binary.LittleEndian.PutUint64(m, tick)
}

// Sum is a checksum over all of the memory, each word by its place.
func (m Memory) Sum() uint64 {
	sum := uint64(len(m))
	for i := 0; i+8 <= len(m); i += 8 {
		sum = (sum<<1 | sum>>63) ^ binary.LittleEndian.Uint64(m[i:])*multiplier
	}
	return sum
}

// Report is the line for the present state.
func (m Memory) Report() string {
	return fmt.Sprintf("%s%d sum %016x\n", reportStart, m.Tick(), m.Sum())
}

// Parse reads a report. Other lines give false.
func Parse(line string) (tick, sum uint64, ok bool) {
	n, err := fmt.Sscanf(line, reportStart+"%d sum %016x", &tick, &sum)
	return tick, sum, err == nil && n == 2
}

// Oracle knows the right sum for every tick.
type Oracle struct {
	mem  Memory
	sums []uint64 // by tick
}

// NewOracle is for a memory of the given size.
func NewOracle(sizeBytes int) *Oracle {
	o := &Oracle{mem: make(Memory, sizeBytes)}
	o.sums = append(o.sums, o.mem.Sum())
	return o
}

// Sum after a number of ticks.
func (o *Oracle) Sum(tick uint64) uint64 {
	for uint64(len(o.sums)) <= tick {
		o.mem.Step()
		o.sums = append(o.sums, o.mem.Sum())
	}
	return o.sums[tick]
}
