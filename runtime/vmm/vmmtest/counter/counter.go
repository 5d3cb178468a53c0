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
func (m Memory) Step() { m.step(func(int, uint64, uint64) {}) }

// step does one tick and tells which words it changed from what to what.
func (m Memory) step(changed func(at int, was, is uint64)) {
	tick := m.Tick() + 1
	words := uint64(len(m)-headBytes) / 8
	x := tick * multiplier
	put := func(at int, is uint64) {
		was := binary.LittleEndian.Uint64(m[at:])
		binary.LittleEndian.PutUint64(m[at:], is)
		changed(at, was, is)
	}
	for range wordsATick {
		x ^= x >> 29
		x *= multiplier
		x ^= x >> 32
		at := headBytes + int(x%words)*8
		put(at, binary.LittleEndian.Uint64(m[at:])*3+x+tick)
	}
	put(0, tick)
}

// Sum is a checksum over all of the memory. It is a sum of terms, so that it
// can be kept up with single words.
func (m Memory) Sum() uint64 {
	sum := uint64(0)
	for at := 0; at+8 <= len(m); at += 8 {
		sum += term(at, binary.LittleEndian.Uint64(m[at:]))
	}
	return sum
}

// term is what a word contributes: it depends on its place and on every bit.
func term(at int, word uint64) uint64 {
	word = (word ^ uint64(at)<<20) * multiplier
	return word ^ word>>31
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
		sum := o.sums[len(o.sums)-1]
		o.mem.step(func(at int, was, is uint64) { sum += term(at, is) - term(at, was) })
		o.sums = append(o.sums, sum)
	}
	return o.sums[tick]
}
